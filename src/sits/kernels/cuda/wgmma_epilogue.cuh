// What follows the products in wgmma_linear.cu: partial sums across CTAs, then the epilogue of a tile.

// The CTA of the cluster that finishes column eight j: known when compiling, so that sums stay in registers.
static __device__ __forceinline__ constexpr int owner(int j) {
    int cta = 0;
    while (j >= (cta + 1) * J / CK) ++cta;
    return cta;
}
static __device__ __forceinline__ constexpr int first_owned(int cta) { return cta * J / CK; }

static __device__ __forceinline__ void add_partial(float (&d)[NT / 2], int j, u32 from) {
    const u32x4 v = load_shared(from);
    d[4 * j] += __uint_as_float(v.a); d[4 * j + 1] += __uint_as_float(v.b);
    d[4 * j + 2] += __uint_as_float(v.c); d[4 * j + 3] += __uint_as_float(v.d);
}

// Sends the sums that other CTAs of the cluster finish, and adds theirs to those that this one does.
[[maybe_unused]] static __device__ __forceinline__ void exchange(
    float (&d)[NT / 2], u32 space, u32 received, u32 taken, int rank, int round, int thread) {
#if CK > 1
    if (round > 0) barrier_wait_cluster(taken, (round - 1) & 1);
    u32 there[CK];
#pragma unroll
    for (int to = 0; to < CK; ++to)
        there[to] = remote_address(space + REMOTE_AT, to) + ((rank < to ? rank : rank - 1) * OWN * 128 + thread) * 16;
#pragma unroll
    for (int j = 0; j < J; ++j)
        if (owner(j) != rank)
            asm volatile("st.shared::cluster.v4.f32 [%0], {%1,%2,%3,%4};"
                         ::"r"(there[owner(j)] + (j - first_owned(owner(j))) * 2048),
                         "f"(d[4 * j]), "f"(d[4 * j + 1]), "f"(d[4 * j + 2]), "f"(d[4 * j + 3]) : "memory");
    __syncwarp();
    if ((thread & 31) < CK && (thread & 31) != rank) arrive_remote(received, thread & 31);
    barrier_wait_cluster(received, round & 1);
#pragma unroll
    for (int sender = 0; sender < CK - 1; ++sender)
#pragma unroll
        for (int j = 0; j < J; ++j)
            if (owner(j) == rank)
                add_partial(d, j, space + REMOTE_AT + ((sender * OWN + j - first_owned(owner(j))) * 128 + thread) * 16);
#endif
}

#define GAINED (EPILOGUE == 1 && !E4M3)  // the norm that follows e4m3 products is a kernel of its own: it quantises

// Finishes a tile and writes it: the warpgroup of its row tile that holds the sums.
static __device__ __forceinline__ void finish(
    const Arguments& p, float (&d)[NT / 2], u32 space, u32 scales, const float (&factor)[2], int row_tile, int row_tiles,
    int column, int rank, int barrier, int thread) {
    const int lane = thread & 31, warp = thread >> 5;
    sync_named(barrier, 128);  // all have read their partial sums: the space is used again
    // Put the tile in shared memory as [m][n].
    const int outputs = EPILOGUE == 2 ? 32 : 64, pitch = outputs * 2 + 16;
    const int first = first_owned(rank), first_row = column + first * 8;
#pragma unroll
    for (int j = 0; j < J; ++j) {
        if (owner(j) != rank) continue;
        const int local = j - first_owned(owner(j));
        float r[2] = {1.f, 1.f};
#if NORM || E4M3
        asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];"
                     : "=f"(r[0]), "=f"(r[1]) : "r"(scales + (first_row + local * 8 + (lane & 3) * 2) * 4));
#endif
        const float top0 = d[4 * j] * (factor[0] * r[0]), top1 = d[4 * j + 1] * (factor[0] * r[1]);
        const float low0 = d[4 * j + 2] * (factor[1] * r[0]), low1 = d[4 * j + 3] * (factor[1] * r[1]);
        const u32 row = space + (local * 8 + (lane & 7)) * pitch;
#if EPILOGUE == 2
        const u32 v = pack(top0 / (1.f + __expf(-top0)) * low0, top1 / (1.f + __expf(-top1)) * low1);
        asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(row + warp * 16), "r"(v) : "memory");
#else
        const u32 to = row + warp * 32 + ((lane >> 3) & 1) * 16;
        asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1,%2};"
                     ::"r"(to), "r"(pack(top0, top1)), "r"(pack(low0, low1)) : "memory");
#endif
    }
    sync_named(barrier, 128);
    const int rows = (first_owned(rank + 1) - first) * 8;
    const int pieces = outputs / 8;  // of 16 bytes in a row
    for (int i = thread; i < rows * pieces; i += 128) {
        const int m = i / pieces, piece = i % pieces;
        const int batch_row = first_row + m;
        u32x4 v = load_shared(space + m * pitch + piece * 16);
        bool inside = batch_row < p.M;
#if EPILOGUE == 2
        const int n = row_tile * 32 + piece * 8, width = p.N / 2;
        if (inside && n < width) *(u32x4*)(p.y + (size_t)batch_row * width + n) = v;
#else
#if PLAIN_ORDER
        const int n = row_tile * 32 + (piece >> 1) * 8 + (piece & 1) * (p.N / 2);
        inside = inside && row_tile * 32 + (piece >> 1) * 8 < p.N / 2;
#else
        const int n = row_tile * 64 + piece * 8;
        inside = inside && n < p.N;
#endif
        u32 word[4] = {v.a, v.b, v.c, v.d};
        u16* y = p.y + (size_t)batch_row * p.N + n;
        [[maybe_unused]] float squares = 0.f;
        if (inside) {
            u32x4 extra = {0, 0, 0, 0};
            if (p.bias) extra = load_global(p.bias + n);
            const u32 b[4] = {extra.a, extra.b, extra.c, extra.d};
#if EPILOGUE == 1
            const u32x4 old = load_global(y);
            const u32 o[4] = {old.a, old.b, old.c, old.d};
#endif
#if GAINED
            const u32x4 gain = load_global(p.next_gain + n);
            const u32 g[4] = {gain.a, gain.b, gain.c, gain.d};
            u32 gained[4];
#endif
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                float low = to_float((u16)word[e]), high = to_float((u16)(word[e] >> 16));
                if (p.bias) { low += to_float((u16)b[e]); high += to_float((u16)(b[e] >> 16)); }
#if EPILOGUE == 1
                low += to_float((u16)o[e]); high += to_float((u16)(o[e] >> 16));
#endif
                word[e] = pack(low, high);
#if GAINED
                low = to_float((u16)word[e]); high = to_float((u16)(word[e] >> 16));
                squares += low * low + high * high;
                gained[e] = pack(low * to_float((u16)g[e]), high * to_float((u16)(g[e] >> 16)));
#endif
            }
            *(u32x4*)y = u32x4{word[0], word[1], word[2], word[3]};
#if GAINED
            *(u32x4*)(p.gained + (size_t)batch_row * p.N + n) = u32x4{gained[0], gained[1], gained[2], gained[3]};
#endif
        }
#if GAINED
#pragma unroll
        for (int step = 1; step < 8; step *= 2) squares += __shfl_xor_sync(~0u, squares, step);  // the 8 lanes of a row
        if (piece == 0 && batch_row < p.M) p.squares_out[(size_t)batch_row * row_tiles + row_tile] = squares;
#endif
#endif
    }
}
