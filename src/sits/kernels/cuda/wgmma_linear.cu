// Linear layer for batches of 8 to some hundred rows: y[m, n] = sum_k W[n, k] * x[m, k], W in 4 bits, on Hopper's wgmma.
//
// The product is computed transposed: 64 weight rows are the M side of an instruction, NT batch rows its N side. A weight goes
// from shared memory to registers, becomes a 16-bit float there (`dequantise`: rounded once, which is what dequantising to that
// type gives) and is the A operand; x is the B operand in shared memory. Sums are float32.
//
// A CTA owns GR row tiles of 64. Its consumer warpgroups are GR x GK: GK of them take stages of KC chunks of 64 k in turn, each
// with its own partial sums, added up through shared memory at the end. CK CTAs of a cluster split K further and exchange partial
// sums through distributed shared memory, each finishing a share of the batch rows. A producer warp for weights and one for x
// keep STAGES stages in flight. CTAs are persistent and the producers run ahead across tiles, so ramps are hidden. The first
// weights are requested before waiting for the previous kernel (programmatic dependent launch).
//
// What decides the shape: a producer is one thread, 300 cycles a stage; a multiprocessor takes in 64 bytes a cycle at most, and x is
// NT / 18 times the bytes of a row tile's weights (hence GR); 8192 rows are 128 row tiles for 132 multiprocessors (hence CK).
//
// Compile-time: NT (multiple of 8, at most 256), GR (1 or 2), GK, CK, KC, STAGES (see below), BF16,
// HAS_MIN (w = q s + m, else (q - 8) s), NORM (scale each batch row by 1 / root mean square), EPILOGUE 0 = y = r * acc + bias,
// 1 = residual add, gain and sums of squares, 2 = silu(gate) * up; PLAIN_ORDER (EPILOGUE 0 of interleaved rows: put gate and up
// back in order); E4M3: products in 8 bits (wgmma_e4m3.cuh; KC is even, no NORM); LATE: give a stage back when the next one has begun, so that products never pause (KC > 1; with KC = 1 always).
// The host puts before this text: u32, u64 and wgmma(float (&d)[NT / 2], u32 a0, a1, a2, a3, u64 descriptor).

#include "half.cuh"

struct __align__(16) u32x4 { u32 a, b, c, d; };
struct __align__(64) TensorMap { unsigned char bytes[128]; };

struct Arguments {
    TensorMap x;             // [K / 64][M][64], boxes of KC, NT, 64; e4m3 [K / 128][M][128], KC / 2; 128-byte swizzle
    const unsigned char* weight;  // [row tiles][chunks, a multiple of 4][BLOCK_BYTES]: see wgmma_layout.py
    const float* row_factor; // [N, rounded up to 64]: every row's scales were divided by it
    u16* y;                  // EPILOGUE 0: [M][N]; 1: the residual [M][N], updated in place; 2: [M][N / 2]
    const u16* bias;         // [N] or null (not for EPILOGUE 2)
    const u16* next_gain;    // EPILOGUE 1: weight of the norm that follows, [N]
    u16* gained;             // EPILOGUE 1: residual * next_gain, [M][N]
    float* squares_out;      // EPILOGUE 1: partial sums of squares, [M][row tiles]
    const float* squares_in; // NORM: partial sums of squares of the input rows, [M][squares_count]; E4M3: the rows' scales, [M]
    int squares_count;
    float eps;
    int M, N, K;             // N counts rows of the weight (gate and up together for EPILOGUE 2)
};

#define BLOCK_BYTES (HAS_MIN ? 2560 : 2304)
#define X_CHUNK_BYTES (E4M3 ? NT * 64 : NT * 128)  // of e4m3 a row of 128 bytes is two chunks
#define X_BYTES (KC * X_CHUNK_BYTES)
#define WEIGHT_BYTES (KC * BLOCK_BYTES)  // of one row tile
#define WGS (GR * GK)
// Columns of the sums come in J eights; of these a CTA of the cluster finishes at most OWN.
#define J (NT / 8)
#define OWN ((J + CK - 1) / CK)
#define LARGER(a, b) ((a) > (b) ? (a) : (b))
#define STAGING_BYTES (OWN * 8 * 144)                      // the finished tile, on its way to memory
#define LOCAL_BYTES ((GK - 1) * 64 * NT * 4)               // partial sums of the other warpgroups
#define REMOTE_BYTES ((CK - 1) * 64 * OWN * 8 * 4)         // and of the other CTAs
#define REMOTE_AT (GK > 1 ? LARGER(LOCAL_BYTES, STAGING_BYTES) : 0)
#define EXCHANGE_BYTES (GK > 1 ? REMOTE_AT + REMOTE_BYTES : LARGER(REMOTE_BYTES, STAGING_BYTES))  // for each row tile
#define CONSUMERS (WGS * 128)
#define THREADS (CONSUMERS + (SET_REGISTERS ? 128 : 64))  // setmaxnreg counts in warpgroups
static_assert(4 % KC == 0, "K is padded to four chunks; with three, a fragment would be overwritten while it is multiplied");
// Each of the GK warpgroups holds a slot; one that gives it back only when its next has begun needs another to come in.
static_assert(STAGES >= GK + (KC == 1 || LATE), "the warpgroups would wait for slots that they hold themselves");
#if CK > 1
#define CLUSTER __cluster_dims__(CK, 1, 1)
#else
#define CLUSTER
#endif

#include "wgmma_memory.cuh"

struct Shared {  // addresses
    u32 x, weight;        // the ring of STAGES slots
    u32 exchange;         // for each row tile: partial sums on their way, then the finished tile
    u32 full, empty;      // barriers of the slots: x and weights are in; the warpgroups that read them have done so
    u32 received, taken;  // barriers of the row tiles: the other CTAs' sums are here; the other CTAs have used ours
    u32 scale;            // of the batch rows, [MAX_NORM_ROWS]
};

#if E4M3
#include "wgmma_e4m3.cuh"
#else
#include "wgmma_half.cuh"
#endif

// One stage of one chunk; the slot before is given back once its products are done.
#define CHUNK(fragment)                                                                                                   \
    do {                                                                                                                  \
        barrier_wait(at.full + slot * 8, parity);                                                                         \
        multiply_chunk(d, fragment, at.x + slot * X_BYTES, at.weight + (slot * GR + row_group) * WEIGHT_BYTES, 0, thread); \
        wait_groups<1>();                                                                                                 \
        if (lane == 0 && held >= 0) arrive(at.empty + held * 8);                                                          \
        held = slot;                                                                                                      \
        slot += GK;                                                                                                       \
        if (slot >= STAGES) slot -= STAGES, parity ^= 1;                                                                  \
    } while (0)

template <int LEFT> static __device__ __forceinline__ void wait_groups() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

#include "wgmma_epilogue.cuh"

extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, MIN_BLOCKS) wgmma_linear(const __grid_constant__ Arguments p) {
    extern __shared__ unsigned char raw[];
    Shared at;
    at.x = (shared_address(raw) + 1023) & ~1023u;  // the swizzle counts in 1024 bytes
    at.weight = at.x + STAGES * X_BYTES;
    at.exchange = at.weight + STAGES * GR * WEIGHT_BYTES;
    at.full = at.exchange + GR * EXCHANGE_BYTES;
    at.empty = at.full + STAGES * 8;
    at.received = at.empty + STAGES * 8;
    at.taken = at.received + GR * 8;
    at.scale = at.taken + GR * 8;
    // From a shuffle, so that the assembler knows it is the same in all lanes: slots and descriptors then live in uniform registers.
    const int warp = __shfl_sync(~0u, threadIdx.x >> 5, 0), lane = threadIdx.x & 31;
    const int rank = CK > 1 ? blockIdx.x % CK : 0, cluster = blockIdx.x / CK, clusters = gridDim.x / CK;
    const int chunks = (p.K / 64 + 3) / 4 * 4, stages = chunks / KC;
    const int first_stage = rank * stages / CK, my_stages = (rank + 1) * stages / CK - first_stage;
    const int row_tiles = (p.N + 63) / 64, column_tiles = (p.M + NT - 1) / NT;
    const int units = (row_tiles + GR - 1) / GR * column_tiles;  // a unit: GR row tiles of one column tile

    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            barrier_init(at.full + s * 8, 1);
            barrier_init(at.empty + s * 8, 4 * GR);
        }
        for (int r = 0; r < GR && CK > 1; ++r) {
            barrier_init(at.received + r * 8, 4 * (CK - 1));
            barrier_init(at.taken + r * 8, 4 * (CK - 1));
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    cluster_sync();

    if (warp >= WGS * 4) {
#if SET_REGISTERS
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
#endif
        if (lane == 0 && warp <= WGS * 4 + 1) {
            const bool weights = warp == WGS * 4;
            u64 policy;
            asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
            const u32 first = weights ? at.weight : at.x, step = weights ? GR * WEIGHT_BYTES : X_BYTES;
            u32 full = at.full, empty = at.empty, to = first, parity = 1;  // of the empty barriers: the first round passes
            if (!weights) {
                prefetch_map(&p.x);
                asm volatile("griddepcontrol.wait;" ::: "memory");
            }
            for (int unit = cluster, slot = 0; unit < units; unit += clusters) {
                const int row_tile = unit / column_tiles * GR, row = unit % column_tiles * NT;
                const size_t pitch = (size_t)chunks * BLOCK_BYTES;
                const unsigned char* from = p.weight + row_tile * pitch + first_stage * WEIGHT_BYTES;
                const unsigned char* other = from + (row_tile + 1 < row_tiles ? pitch : 0);
                for (int stage = 0; stage < my_stages; ++stage) {
                    barrier_wait(empty, parity);
                    if (weights) {
                        expect_bytes(full, X_BYTES + GR * WEIGHT_BYTES);
                        copy_weights(to, from, full, policy);
                        if (GR > 1) copy_weights(to + WEIGHT_BYTES, other, full, policy);
                        from += WEIGHT_BYTES, other += WEIGHT_BYTES;
                    } else {
                        copy_x(to, &p.x, (first_stage + stage) * KC / (E4M3 ? 2 : 1), row, full);
                    }
                    full += 8, empty += 8, to += step;
                    if (++slot == STAGES) slot = 0, parity ^= 1, full = at.full, empty = at.empty, to = first;
                }
            }
            if (weights) asm volatile("griddepcontrol.launch_dependents;");
        }
        __syncwarp();
    } else {
#if SET_REGISTERS
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
#endif
        const int row_group = warp / 4 / GK, group = warp / 4 % GK, thread = threadIdx.x % 128;
        const u32 space = at.exchange + row_group * EXCHANGE_BYTES;
        float d[NT / 2];
        u32 even[FRAGMENTS][4], odd[FRAGMENTS][4];
        int done = 0;  // slots this CTA has used for earlier units: the ring runs on from one unit to the next
        asm volatile("griddepcontrol.wait;" ::: "memory");
#if E4M3
        for (int m = threadIdx.x; m < p.M; m += CONSUMERS)
            asm volatile("st.shared.f32 [%0], %1;" ::"r"(at.scale + m * 4), "f"(__ldcg(p.squares_in + m) / WEIGHT_FACTOR) : "memory");
        sync_named(ALL_CONSUMERS, CONSUMERS);
#elif NORM
        for (int m = warp; m < p.M; m += WGS * 16) {  // while the first stages arrive; four rows at a time
            float sum[4] = {0.f, 0.f, 0.f, 0.f};
            for (int i = lane; i < p.squares_count; i += 32)
#pragma unroll
                for (int r = 0; r < 4; ++r)
                    if (m + r * WGS * 4 < p.M) sum[r] += __ldcg(p.squares_in + (size_t)(m + r * WGS * 4) * p.squares_count + i);
#pragma unroll
            for (int r = 0; r < 4; ++r) {
#pragma unroll
                for (int step = 16; step; step >>= 1) sum[r] += __shfl_xor_sync(~0u, sum[r], step);
                const float scale = rsqrtf(sum[r] / p.K + p.eps);
                if (lane == 0 && m + r * WGS * 4 < p.M)
                    asm volatile("st.shared.f32 [%0], %1;" ::"r"(at.scale + (m + r * WGS * 4) * 4), "f"(scale) : "memory");
            }
        }
        sync_named(ALL_CONSUMERS, CONSUMERS);
#endif
        for (int unit = cluster, round = 0; unit < units; unit += clusters, ++round) {
#pragma unroll
            for (int i = 0; i < NT / 2; ++i) d[i] = 0.f;
            const int row_tile = unit / column_tiles * GR + row_group, column = unit % column_tiles * NT;
            const float* rows = p.row_factor + min(row_tile, row_tiles - 1) * 64 + thread / 32 * 16 + (lane >> 2);
            const float factor[2] = {__ldg(rows), __ldg(rows + 8)};
            int slot = (done + group) % STAGES;
            u32 parity = (done + group) / STAGES & 1;
            [[maybe_unused]] int held = -1;  // the slot whose products may still run: not given back yet
#if KC == 1
            // One chunk a stage: two fragments in turn, one is made while the products of the other run. (A branch between the
            // two would make the assembler fall back to one at a time.)
            int left = (my_stages - group + GK - 1) / GK;
            for (; left > 1; left -= 2) {
                CHUNK(even);
                CHUNK(odd);
            }
            if (left) CHUNK(even);
#else
            for (int left = (my_stages - group + GK - 1) / GK; left > 0; --left) {
                const u32 x = at.x + slot * X_BYTES, weight = at.weight + (slot * GR + row_group) * WEIGHT_BYTES;
                barrier_wait(at.full + slot * 8, parity);
                // Two fragments in turn: one is made while the products of the other run.
#pragma unroll
                for (int chunk = 0; chunk < KC; ++chunk) {
                    multiply_chunk(d, chunk & 1 ? odd : even, x, weight, chunk, thread);
                    if (chunk + 1 < KC || LATE) wait_groups<1>();
                    if (LATE && chunk == 0 && lane == 0 && held >= 0) arrive(at.empty + held * 8);
                }
                if (!LATE) {  // at once, not when the next stage has begun: a slot takes 2000 cycles to be filled again
                    wait_groups<0>();
                    if (lane == 0) arrive(at.empty + slot * 8);
                }
                held = slot;
                slot += GK;
                if (slot >= STAGES) {
                    slot -= STAGES;
                    parity ^= 1;
                }
            }
#endif
            wait_groups<0>();
            if ((KC == 1 || LATE) && lane == 0 && held >= 0) arrive(at.empty + held * 8);
            done += my_stages;
            if (group > 0) {
                if (round > 0) sync_named(PARTIALS_READ + row_group, GK * 128);
#pragma unroll
                for (int j = 0; j < J; ++j)
                    asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(space + (((group - 1) * J + j) * 128 + thread) * 16),
                                 "f"(d[4 * j]), "f"(d[4 * j + 1]), "f"(d[4 * j + 2]), "f"(d[4 * j + 3]) : "memory");
                arrive_named(PARTIALS_READY + row_group, GK * 128);
            } else {
                if (GK > 1) sync_named(PARTIALS_READY + row_group, GK * 128);
#pragma unroll
                for (int other = 0; other < GK - 1; ++other)
#pragma unroll
                    for (int j = 0; j < J; ++j) add_partial(d, j, space + ((other * J + j) * 128 + thread) * 16);
                exchange(d, space, at.received + row_group * 8, at.taken + row_group * 8, rank, round, thread);
                if (row_tile < row_tiles)
                    finish(p, d, space, at.scale, factor, row_tile, row_tiles, column, rank, WARPGROUP + row_group, thread);
                if (unit + clusters < units) {
                    if (GK > 1) arrive_named(PARTIALS_READ + row_group, GK * 128);
#if CK > 1
                    __syncwarp();
                    if (lane < CK && lane != rank) arrive_remote(at.taken + row_group * 8, lane);
#endif
                }
            }
        }
    }
    cluster_sync();  // nobody leaves while another may still write here
}
