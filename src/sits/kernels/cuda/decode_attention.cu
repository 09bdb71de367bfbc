// Rotary embedding, KV write and attention of one new token per request, for short contexts or many requests.
//
// A CTA of 4 warps takes one (request, KV head), or one of SPLITS parts of its context; the parts of one are a cluster and add
// up through distributed shared memory. Nothing goes through global memory but q, k, v and the result; many CTAs a
// multiprocessor hide each other's latency. Tiles of 64 tokens: each warp works alone on 16 of them, from registers to tensor
// core (m16n8k16, the query heads of the KV head as rows), with an online softmax of its own.
//
// K and V of STAGES tiles are on their way into shared memory at once (cp.async, each warp its own), the first of them before
// waiting for the qkv projection (programmatic dependent launch): the cache was written by earlier steps. Operands are read
// 16 bytes a lane without conflicts: the order of k inside a group of 32 is permuted alike in q and K (lane t of a quad takes
// 8 t .. 8 t + 7), column n of the eight columns j of V is d = 8 n + j, and rows are swizzled by pieces of 16 bytes.
//
// Compile-time: D (64 or 128), GROUP (query heads of a KV head, at most 8), SPLITS (1, 2, 4, 8), STAGES, BF16, WINDOW (there is a
// sliding window), BLOCKS (CTAs a multiprocessor).

#include "warp.cuh"

struct Arguments {
    const u16* qkv;          // [requests][qkv_stride]: q heads, k heads, v heads
    const float* cos_sin;    // [positions][cos_stride]: cos, then sin, `half` each
    const i64* positions;    // [requests]
    const i64* slots;        // [requests], where k and v go; -1: nowhere
    u16* k_cache;            // [blocks][block size][KV heads][D]
    u16* v_cache;
    u16* out;                // [requests][KV heads * GROUP][D]
    const int* context_lens; // [requests], the new token included; 0: nothing to do
    const int* tables;       // [requests][table_stride] block numbers
    i64 qkv_stride;
    int cos_stride, half, table_stride, kv_heads, block_log, window;
    float scale;             // of the scores, times log2(e)
    int early;               // let the next kernel start at once: there are multiprocessors that have no CTA of this one
};

#define KEY_PIECES (D / 32)
#define VALUE_PIECES (D / 64)
#define PITCH (D + 8)  // of a query row in shared memory

#define ROW_BYTES (D * 2)
#define ROW_PIECES (D / 8)        // of 16 bytes
#define TILE_BYTES (16 * ROW_BYTES)  // K or V of one warp's 16 tokens

struct Merge {  // the sums of each warp, over its own largest score; then of each CTA of the cluster, in the first one
    float sums[4][GROUP][D];
    float best[4][GROUP], total[4][GROUP];
};
struct Shared {
    unsigned char tiles[4][STAGES][2][TILE_BYTES];  // Merge lies over them once they are read
    u16 q[GROUP][PITCH];
    u16 k[D], v[D];
    float part_sums[SPLITS > 1 ? SPLITS : 1][GROUP][D];
    float part_best[SPLITS][GROUP], part_total[SPLITS][GROUP];
};
static_assert(sizeof(Merge) <= 4 * STAGES * 2 * TILE_BYTES, "the sums must fit over the tiles");

// Where piece c of row r lies: neighbouring lanes must meet different banks, for K lanes of rows r, r + 1, for V of r, r + 2, ...
static __device__ __forceinline__ u32 key_place(int r, int c) { return r * ROW_BYTES + (c ^ (r & 1) << 2) * 16; }
static __device__ __forceinline__ u32 value_place(int r, int c) { return r * ROW_BYTES + (c ^ (r >> 1 & 3) << 1) * 16; }

// Requests a warp's 16 tokens of K and V; what is outside the context becomes zero (NaN times 0 is NaN).
static __device__ __forceinline__ void request_tile(
    u32 to, const u16* keys, const u16* values, int base, int oldest, int end, size_t pitch, int lane) {
    const int piece = lane % ROW_PIECES;
#pragma unroll
    for (int n = 0; n < ROW_PIECES / 2; ++n) {
        const int r = n * (32 / ROW_PIECES) + lane / ROW_PIECES;
        const bool there = base + r < end && base + r >= oldest;
        const size_t from = (there ? r : 0) * pitch + piece * 8;
        copy_async(to + key_place(r, piece), keys + from, there);
        copy_async(to + TILE_BYTES + value_place(r, piece), values + from, there);
    }
}

#if SPLITS > 1
#define CLUSTER __cluster_dims__(SPLITS, 1, 1)
static __device__ __forceinline__ u32 in_first(const void* p) {  // the same place in the first CTA of the cluster
    u32 remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(remote) : "r"(shared_address(p)));
    return remote;
}
static __device__ __forceinline__ void store_in_first(const void* p, float v) {
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(in_first(p)), "f"(v) : "memory");
}
#else
#define CLUSTER
#endif

// grid (SPLITS, KV heads, requests), 128 threads.
extern "C" __global__ void CLUSTER __launch_bounds__(128, BLOCKS) decode_attention(const __grid_constant__ Arguments p) {
    SHARED_MEMORY(raw);
    Shared& s = *(Shared*)raw;
    const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5, g = lane >> 2, t = lane & 3;
    const int split = blockIdx.x, head = blockIdx.y, request = blockIdx.z;
    const int length = p.context_lens[request];
    if (length <= 0) {  // the same for the whole cluster
        wait_previous();  // also a launch without any work ends after the one before it
        return;
    }
#if SPLITS > 1
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");  // all have started: waited for below
#endif
    if (p.early) release_next();
    const int cached = length - 1, oldest = WINDOW ? max(length - p.window, 0) : 0;
    const int first_tile = oldest / 64, tiles = max((cached + 63) / 64 - first_tile, 0);
    const int begin = tiles * split / SPLITS, end = tiles * (split + 1) / SPLITS;
    const bool has_new = split == SPLITS - 1;
    const size_t pitch = (size_t)p.kv_heads * D;
    const int* table = p.tables + (size_t)request * p.table_stride;
    const int mask = (1 << p.block_log) - 1;

    // Where this warp's 16 tokens of a tile begin; they lie in one block. Lane l knows the block of tile begin + l of 32.
    auto base_of = [&](int tile) { return (first_tile + tile) * 64 + warp * 16; };
    auto block_of = [&](int tile) {
        const int entry = base_of(tile) >> p.block_log;
        return entry < p.table_stride ? __ldg(table + entry) : 0;
    };
    int blocks = block_of(begin + lane);
    auto offset_of = [&](int tile) {
        const int block = __shfl_sync(~0u, blocks, tile - begin & 31);
        return (((size_t)block << p.block_log) + (base_of(tile) & mask)) * pitch + (size_t)head * D;
    };
    const u32 mine = shared_address(s.tiles[warp]);
    auto request_next = [&](int tile, int stage) {  // an empty group when there is none left: groups are counted
        if (tile < end) {
            const size_t offset = offset_of(tile);
            request_tile(mine + stage * 2 * TILE_BYTES, p.k_cache + offset, p.v_cache + offset, base_of(tile), oldest, cached,
                         pitch, lane);
        }
        close_group();
    };
#pragma unroll
    for (int n = 0; n < STAGES; ++n) request_next(begin + n, n);
    // Every thread rotates the values j, j + 1 of some of the query heads, of k, and copies those of v. All that is read is
    // requested before anything is used: one round trip, of which the angles' part lies before the wait.
    constexpr int PER_PASS = 256 / D, PASSES = (GROUP + 2 + PER_PASS - 1) / PER_PASS;
    const int j = thread % (D / 2) * 2, first_head = thread / (D / 2);
    const bool turns = j < 2 * p.half, lower = j < p.half;
    const int partner = turns ? (lower ? j + p.half : j - p.half) : j;
    float2 cosine = {1.f, 1.f}, sine = {0.f, 0.f};
    if (turns) {
        const float* angles = p.cos_sin + p.positions[request] * p.cos_stride + (lower ? j : partner);
        cosine = *(const float2*)angles;
        sine = *(const float2*)(angles + p.half);
        if (lower) sine = float2{-sine.x, -sine.y};
    }
    const i64 slot = p.slots[request];
    wait_previous();

    u32 own[PASSES], other[PASSES];
#pragma unroll
    for (int n = 0; n < PASSES; ++n) {
        const int which = n * PER_PASS + first_head;  // query heads, then k, then v
        const int at = which < GROUP ? head * GROUP + which : p.kv_heads * which + head;
        const u16* from = p.qkv + request * p.qkv_stride + (which < GROUP + 2 ? at : 0) * D;
        own[n] = *(const u32*)(from + j);
        other[n] = *(const u32*)(from + partner);
    }
#pragma unroll
    for (int n = 0; n < PASSES; ++n) {
        const int which = n * PER_PASS + first_head;
        const u32 rotated = pack(low(own[n]) * cosine.x + low(other[n]) * sine.x, high(own[n]) * cosine.y + high(other[n]) * sine.y);
        const u32 value = turns && which <= GROUP ? rotated : own[n];
        if (which < GROUP) *(u32*)&s.q[which][j] = value;
        if (!has_new || which < GROUP || which > GROUP + 1) continue;
        *(u32*)((which == GROUP ? s.k : s.v) + j) = value;
        if (slot >= 0) *(u32*)((which == GROUP ? p.k_cache : p.v_cache) + slot * pitch + head * D + j) = value;
    }
    __syncthreads();

    u32x4 q[KEY_PIECES];
#pragma unroll
    for (int i = 0; i < KEY_PIECES; ++i) q[i] = g < GROUP ? *(const u32x4*)&s.q[g][32 * i + 8 * t] : u32x4{0, 0, 0, 0};
    float best = -INFINITY, total = 0.f, mixed[VALUE_PIECES][8][2];
#pragma unroll
    for (int i = 0; i < VALUE_PIECES; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) mixed[i][j][0] = mixed[i][j][1] = 0.f;
    if (has_new && warp == 0) {  // the softmax starts from the new token
        float score = 0.f;
#pragma unroll
        for (int i = 0; i < KEY_PIECES; ++i) {
            const u32x4 k = *(const u32x4*)&s.k[32 * i + 8 * t];
#pragma unroll
            for (int w = 0; w < 4; ++w) score += low(q[i].w[w]) * low(k.w[w]) + high(q[i].w[w]) * high(k.w[w]);
        }
        score += __shfl_xor_sync(~0u, score, 1);
        score += __shfl_xor_sync(~0u, score, 2);
        best = score * p.scale;
        total = t == 0 ? 1.f : 0.f;  // every lane counts its own columns
#pragma unroll
        for (int i = 0; i < VALUE_PIECES; ++i)
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                mixed[i][j][0] = to_float(s.v[64 * i + 16 * t + j]);
                mixed[i][j][1] = to_float(s.v[64 * i + 16 * t + 8 + j]);
            }
    }

    for (int at = begin, stage = 0; at < end; ++at) {
        const int here = base_of(at);
        const u32 keys = mine + stage * 2 * TILE_BYTES, values = keys + TILE_BYTES;
        wait_groups<STAGES - 1>();
        __syncwarp();
        if (here >= cached) break;  // the last tile, and none of it is this warp's
        float score[2][2] = {{0.f, 0.f}, {0.f, 0.f}};  // tokens 8 h + 2 t, + 1 of query head g
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int i = 0; i < KEY_PIECES; ++i) {
                const u32x4 k = load_shared(keys + key_place(8 * h + g, 4 * i + t));
                mma(score[h], q[i].w[0], q[i].w[1], k.w[0], k.w[1]);
                mma(score[h], q[i].w[2], q[i].w[3], k.w[2], k.w[3]);
            }
        float largest = -INFINITY;
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int token = here + 8 * h + 2 * t + e;
                score[h][e] = token < cached && token >= oldest ? score[h][e] * p.scale : -INFINITY;
                largest = fmaxf(largest, score[h][e]);
            }
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
        const float new_best = fmaxf(best, largest), safe = new_best == -INFINITY ? 0.f : new_best;
        const float fade = power_of_two(best - safe);
        best = new_best;
        float weight[2][2];
        total *= fade;
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int e = 0; e < 2; ++e) total += weight[h][e] = power_of_two(score[h][e] - safe);
        const u32 a0 = pack(weight[0][0], weight[0][1]), a2 = pack(weight[1][0], weight[1][1]);
#pragma unroll
        for (int i = 0; i < VALUE_PIECES; ++i) {
            u32x4 v[4];  // tokens 2 t, 2 t + 1, 2 t + 8, 2 t + 9
#pragma unroll
            for (int m = 0; m < 4; ++m) v[m] = load_shared(values + value_place(2 * t + (m & 1) + (m >> 1) * 8, 8 * i + g));
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                mixed[i][j][0] *= fade;
                mixed[i][j][1] *= fade;
                mma(mixed[i][j], a0, a2, side_by_side(v[0].w[j / 2], v[1].w[j / 2], j & 1),
                    side_by_side(v[2].w[j / 2], v[3].w[j / 2], j & 1));
            }
        }
        __syncwarp();
        if ((at + STAGES - begin & 31) == 0) blocks = block_of(at + STAGES + lane);
        request_next(at + STAGES, stage);
        if (++stage == STAGES) stage = 0;
    }
    if (!p.early) release_next();

    // Add up: the warps of the CTA, then the CTAs of the cluster. A warp without a token has best = -inf and weight 0.
    wait_groups<0>();
    __syncthreads();
    Merge& merge = *(Merge*)raw;
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    if (g < GROUP) {
        if (t == 0) merge.best[warp][g] = best, merge.total[warp][g] = total;
#pragma unroll
        for (int i = 0; i < VALUE_PIECES; ++i)
#pragma unroll
            for (int n = 0; n < 2; ++n)
#pragma unroll
                for (int j = 0; j < 8; j += 4)
                    *(float4*)&merge.sums[warp][g][64 * i + 16 * t + 8 * n + j] =
                        float4{mixed[i][j][n], mixed[i][j + 1][n], mixed[i][j + 2][n], mixed[i][j + 3][n]};
    }
    __syncthreads();
    u16* out = p.out + ((size_t)request * p.kv_heads + head) * GROUP * D;
#if SPLITS > 1
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
    for (int i = thread; i < GROUP * D; i += 128) {
        const int r = i / D, d = i % D;
        float most = -INFINITY, sum = 0.f, value = 0.f;
#pragma unroll
        for (int w = 0; w < 4; ++w) most = fmaxf(most, merge.best[w][r]);
        const float safe = most == -INFINITY ? 0.f : most;
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            const float gain = power_of_two(merge.best[w][r] - safe);
            sum += merge.total[w][r] * gain;
            value += merge.sums[w][r][d] * gain;
        }
#if SPLITS > 1
        store_in_first(&s.part_sums[split][r][d], value);
        if (d == 0) {
            store_in_first(&s.part_best[split][r], most);
            store_in_first(&s.part_total[split][r], sum);
        }
#else
        out[i] = from_float(value / sum);
#endif
    }
#if SPLITS > 1
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    if (split != 0) return;
    for (int i = thread; i < GROUP * D; i += 128) {
        const int r = i / D, d = i % D;
        float most = -INFINITY, sum = 0.f, value = 0.f;
#pragma unroll
        for (int c = 0; c < SPLITS; ++c) most = fmaxf(most, s.part_best[c][r]);
#pragma unroll
        for (int c = 0; c < SPLITS; ++c) {
            const float gain = power_of_two(s.part_best[c][r] - most);
            sum += s.part_total[c][r] * gain;
            value += s.part_sums[c][r][d] * gain;
        }
        out[i] = from_float(value / sum);
    }
#endif
}
