// Rotary embedding, KV write and attention of one new token per request, for any mix of context lengths.
//
// The work of a step is a line of slices of 16 tokens: request by request, KV head by KV head. CTAs take equal shares of it, their
// warps equal shares of those, wherever they fall. A warp streams K and V of its share through a ring of STAGES slices that does
// not stop where one (request, head) ends and the next begins: many short contexts cost no restarts, long ones are spread
// evenly. The first slices are requested before waiting for the qkv projection (programmatic dependent launch): the cache was
// written by earlier steps. Everything comes from context_lens on the device, so a captured graph replays with any lengths.
//
// A warp that has a whole (request, head) writes the result. Otherwise its part (scores' maximum, sum, weighted values) goes to
// shared memory, where the CTA adds up at its end; what crosses CTAs goes to global memory, where the CTA that arrives last adds
// up in order, so the result does not depend on who that was. `arrivals` is left at zero for the next launch.
//
// Operands are read 16 bytes a lane without bank conflicts: the order of k inside a group of 32 is permuted alike in q and K (lane
// t of a quad takes 8 t .. 8 t + 7), column n of the eight columns j of V is d = 8 n + j, rows are swizzled by pieces of 16 bytes.
//
// Compile-time: D (64 or 128), GROUP (query heads of a KV head, at most 8), WARPS, STAGES, BLOCKS (CTAs a multiprocessor),
// SHARED_BYTES, BF16, KIND (of K and V: 0 as q, 1 int8, 2 e4m3; these with one fp16 scale a token and head).

#include "warp.cuh"

#if KIND
typedef unsigned char Stored;
#else
typedef u16 Stored;
#endif
#define LARGEST (KIND == 1 ? 127.f : 448.f)

struct Arguments {
    const u16* qkv;          // [requests][qkv_stride]: q heads, k heads, v heads
    const float* cos_sin;    // [positions][cos_stride]: cos, then sin, D / 2 each
    const i64* positions;    // [requests]
    const i64* slots;        // [requests], where k and v go; -1: nowhere
    Stored* k_cache;         // [blocks][block size][KV heads][D]
    Stored* v_cache;
    u16* out;                // [requests][KV heads * GROUP][D]
    float* partial;          // Part [CTAs][2]
    int* arrivals;           // [requests][KV heads], zero
    const int* context_lens; // [requests], the new token included; 0: nothing to do
    const int* tables;       // [requests][table_stride] block numbers
    i64 qkv_stride;
    int cos_stride, table_stride, kv_heads, block_log, window, requests, min_share;
    float scale;             // of the scores, times log2(e)
#if KIND
    u16* k_scale;            // [blocks][block size][KV heads]
    u16* v_scale;
#endif
};

#define SLICE 16
#define KEY_PIECES (D / 32)
#define VALUE_PIECES (D / 64)
#define ROW_BYTES (D * (int)sizeof(Stored))
#define ROW_PIECES (ROW_BYTES / 16)
#define TILE_BYTES (SLICE * ROW_BYTES)
#define THREADS (WARPS * 32)
#define LOADS 10  // parts read at once by the last to arrive

struct __align__(16) Part { float sums[GROUP][D], best[GROUP], total[GROUP]; };
// A part is what one warp, or then one CTA, has of an item: a (request, KV head). Shares are pieces of the line, so each has at most
// two parts of items that it shares with others: one that began before it (continued; it may end here or go on), and one that
// begins in it and goes on after it. Everything between is whole, and goes straight to the result.
struct Owner { int item, begin, end; };  // an item and where all its slices lie in the line; item -1: none
struct Shared {
    unsigned char tiles[WARPS][STAGES][2][TILE_BYTES];  // when the warp has read its last: the part that begins in its share
#if KIND
    u32 scales[WARPS][STAGES][2][SLICE];  // of K, of V: the word of two heads that has a token's scale
#endif
    Part continued[WARPS];                              // the part that began before its share
    Owner owner[WARPS][2];                              // of these two: [0] continued, [1] over the tiles
    int finish[2];
};
static_assert(sizeof(Part) <= STAGES * 2 * TILE_BYTES, "a part must fit over a warp's tiles");
static_assert(sizeof(Shared) <= SHARED_BYTES, "line_attention.py counts otherwise");

// Where piece c of row r lies: neighbouring lanes must meet different banks, for K lanes of rows r, r + 1, for V of r, r + 2, ...
#if KIND
static __device__ __forceinline__ u32 key_place(int r, int c) {
    return r * ROW_BYTES + (c ^ (D == 128 ? r & 3 : r >> 1 & 1) << 1) * 16;
}
static __device__ __forceinline__ u32 value_place(int r, int c) {
    return r * ROW_BYTES + (c ^ (r >> 1 & (D == 128 ? 3 : 1)) << 1) * 16;
}
#else
static __device__ __forceinline__ u32 key_place(int r, int c) { return r * ROW_BYTES + (c ^ (r & 1) << 2) * 16; }
static __device__ __forceinline__ u32 value_place(int r, int c) { return r * ROW_BYTES + (c ^ (r >> 1 & 3) << 1) * 16; }
#endif

// Eight values of a tile, from value 8 n of row r on.
template <u32 (*place)(int, int)> static __device__ __forceinline__ u32x4 load_eight(u32 tile, int r, int n) {
#if KIND
    const uint2 raw = load_shared_pair(tile + place(r, n / 2) + n % 2 * 8);
    u32x4 v;
    widen(raw.x, v.w[0], v.w[1]);
    widen(raw.y, v.w[2], v.w[3]);
    return v;
#else
    return load_shared(tile + place(r, n));
#endif
}

#if KIND
// COUNT pieces of eight values, this lane's of a head whose other values the lanes of its quad have: stored with one scale for all.
template <int COUNT, class Column>
static __device__ __forceinline__ void store_narrow(
    float (&x)[COUNT][8], Stored* to, u16* scale_at, bool writes, bool writes_scale, Column column) {
    float largest = 0.f;  // or NaN, if one of them is: saturating would make it a number, so the scale keeps it
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) largest = largest_or_nan(largest, fabsf(x[i][j]));
    largest = largest_or_nan(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = largest_or_nan(largest, __shfl_xor_sync(~0u, largest, 2));
    const float exact_scale = largest / LARGEST;
    const u16 scale = to_fp16(exact_scale > 65504.f ? 65504.f : exact_scale);
    const float wide = fp16_to_float(scale), divisor = wide == 0.f ? 1.f : wide;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        u32 words[2] = {0, 0};
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            float back;
            words[j / 4] |= narrow(fminf(fmaxf(x[i][j] / divisor, -LARGEST), LARGEST), back) << 8 * (j % 4);
            x[i][j] = back * wide;
        }
        if (writes) *(uint2*)(to + column(i)) = uint2{words[0], words[1]};
    }
    if (writes_scale) *scale_at = scale;
}
#endif

// A place in the line.
struct Cursor {
    int request, head, slice, slices, first, length, oldest;

    __device__ __forceinline__ void enter(const Arguments& p) {  // the sizes of its request
        length = p.context_lens[request];
        oldest = p.window > 0 ? max(length - p.window, 0) : 0;
        first = oldest / SLICE;
        slices = length > 0 ? (length + SLICE - 1) / SLICE - first : 0;
    }
    __device__ __forceinline__ void advance(const Arguments& p) {
        if (++slice < slices) return;
        slice = 0;
        if (++head < p.kv_heads) return;
        head = 0;
        do {
            if (++request >= p.requests) return;  // the end of the line: nobody looks any more
            enter(p);
        } while (!slices);
    }
};

static __device__ __forceinline__ int slices_of(const Arguments& p, int request) {
    if (request >= p.requests) return 0;
    const int length = p.context_lens[request];
    return length > 0 ? (length + SLICE - 1) / SLICE - (p.window > 0 ? max(length - p.window, 0) : 0) / SLICE : 0;
}

// The cursor at `unit` of the line.
static __device__ __forceinline__ Cursor locate(const Arguments& p, int unit, int lane) {
    int before = 0;
    for (int base = 0;; base += 32) {
        const int mine = slices_of(p, base + lane);
        int upto = mine;
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            const int other = __shfl_up_sync(~0u, upto, d);
            if (lane >= d) upto += other;
        }
        const u32 beyond = __ballot_sync(~0u, (before + upto) * p.kv_heads > unit);
        if (!beyond) {
            before += __shfl_sync(~0u, upto, 31);
            continue;
        }
        const int found = __ffs(beyond) - 1;
        const int local = unit - (before + __shfl_sync(~0u, upto - mine, found)) * p.kv_heads;
        Cursor at;
        at.request = base + found;
        at.enter(p);
        at.head = local / at.slices;
        at.slice = local % at.slices;
        return at;
    }
}

static __device__ __forceinline__ u16* out_of(const Arguments& p, int item) { return p.out + (size_t)item * GROUP * D; }

static __device__ __forceinline__ void store_values(u16* to, float4 v, float total) {
    *(uint2*)to = uint2{pack(v.x / total, v.y / total), pack(v.z / total, v.w / total)};
}

// A sum under way: values over their largest score.
struct Sum {
    float best = -INFINITY, total = 0.f;
    float4 value = {0.f, 0.f, 0.f, 0.f};

    __device__ __forceinline__ void fade_to(float new_best) {
        const float fade = power_of_two(best - new_best);
        best = new_best, total *= fade;
        value.x *= fade, value.y *= fade, value.z *= fade, value.w *= fade;
    }
    __device__ __forceinline__ void add(float other_best, float other_total, float4 other) {
        const float gain = power_of_two(other_best - best);
        total += other_total * gain;
        value.x += other.x * gain, value.y += other.y * gain, value.z += other.z * gain, value.w += other.w * gain;
    }
};

// The CTA that arrived last adds up the parts of all CTAs that have some of this (request, head).
static __device__ void combine(const Arguments& p, const Owner& owner, int share, int thread) {
    const int first = owner.begin / share, last = (owner.end - 1) / share;
    const Part* parts = (const Part*)p.partial;
    for (int i = thread; i < GROUP * D / 4; i += THREADS) {
        const int r = i * 4 / D;
        Sum sum;
        for (int start = first; start <= last; start += LOADS) {
            float best[LOADS], total[LOADS];
            float4 value[LOADS];
            float most = sum.best;
#pragma unroll
            for (int n = 0; n < LOADS; ++n) {
                const int cta = min(start + n, last);
                const Part& part = parts[cta * 2 + (cta == first)];  // it begins in the first one and continues in the others
                best[n] = load_l2(&part.best[r]);
                total[n] = load_l2(&part.total[r]);
                value[n] = load_l2((const float4*)part.sums + i);
            }
#pragma unroll
            for (int n = 0; n < LOADS; ++n) most = fmaxf(most, best[n]);
            sum.fade_to(most);
#pragma unroll
            for (int n = 0; n < LOADS; ++n)
                if (start + n <= last) sum.add(best[n], total[n], value[n]);
        }
        store_values(out_of(p, owner.item) + i * 4, sum.value, sum.total);
    }
}

// grid: CTAs that share the line.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) line_attention(const __grid_constant__ Arguments p) {
    SHARED_MEMORY(raw);
    Shared& s = *(Shared*)raw;
    const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5, g = lane >> 2, t = lane & 3;

    int units = 0;
    for (int request = lane; request < p.requests; request += 32) units += slices_of(p, request);
#pragma unroll
    for (int d = 16; d; d >>= 1) units += __shfl_xor_sync(~0u, units, d);
    units *= p.kv_heads;
    const int share = max((units + (int)gridDim.x - 1) / (int)gridDim.x, p.min_share);
    const int cta_begin = min((int)blockIdx.x * share, units), cta_end = min(cta_begin + share, units);
    const int begin = cta_begin + (cta_end - cta_begin) * warp / WARPS;
    const int end = cta_begin + (cta_end - cta_begin) * (warp + 1) / WARPS;
    if (cta_begin == cta_end) {
        wait_previous();  // also a launch without work ends after the one before it
        return;
    }
    if (lane < 2) s.owner[warp][lane].item = -1;
    __syncwarp();

    if (begin < end) {
        const size_t pitch = (size_t)p.kv_heads * D;
        const int in_block = (1 << p.block_log) - 1;
        const u32 ring = shared_address(s.tiles[warp]);
#if KIND
        const u32 scales = shared_address(s.scales[warp]);
#endif
        Cursor at = locate(p, begin, lane), ahead = at;
        int requested = begin, listed_request = -1, listed = 0, blocks = 0;

        // Requests the next slice of the share; an empty group when there is none left, since groups are counted.
        auto request_next = [&](int stage) {
            if (requested < end) {
                if (ahead.request != listed_request || ahead.slice < listed || ahead.slice >= listed + 32) {
                    listed_request = ahead.request, listed = ahead.slice;  // lane l knows the block of slice listed + l
                    const int entry = (ahead.first + listed + lane) * SLICE >> p.block_log;
                    blocks = entry < p.table_stride ? __ldg(p.tables + (size_t)ahead.request * p.table_stride + entry) : 0;
                }
                const int block = __shfl_sync(~0u, blocks, ahead.slice - listed);
                const int base = (ahead.first + ahead.slice) * SLICE;
                const size_t offset = (((size_t)block << p.block_log) + (base & in_block)) * pitch + (size_t)ahead.head * D;
                const u32 to = ring + stage * 2 * TILE_BYTES;
                const int piece = lane % ROW_PIECES;
#pragma unroll
                for (int n = 0; n < ROW_PIECES / 2; ++n) {
                    const int r = n * (32 / ROW_PIECES) + lane / ROW_PIECES;
                    // What is outside the context becomes zero: NaN times 0 is NaN.
                    const bool there = base + r < ahead.length - 1 && base + r >= ahead.oldest;
                    const size_t from = offset + (there ? r : 0) * pitch + piece * (16 / (int)sizeof(Stored));
                    copy_async(to + key_place(r, piece), p.k_cache + from, there);
                    copy_async(to + TILE_BYTES + value_place(r, piece), p.v_cache + from, there);
                }
#if KIND
                const int r = lane % SLICE;
                const bool there = base + r < ahead.length - 1 && base + r >= ahead.oldest;
                const size_t from = offset / D + (there ? r : 0) * p.kv_heads & ~(size_t)1;
                copy_async_word(scales + (stage * 32 + lane) * 4, (lane < SLICE ? p.k_scale : p.v_scale) + from, there);
#endif
                ++requested;
                ahead.advance(p);
            }
            close_group();
        };
#pragma unroll
        for (int n = 0; n < STAGES; ++n) request_next(n);

        float4 cosine[KEY_PIECES / 2][2], sine[KEY_PIECES / 2][2];  // of this lane's columns
        auto load_angles = [&](int request) {
            const float* angles = p.cos_sin + p.positions[request] * p.cos_stride + 8 * t;
#pragma unroll
            for (int i = 0; i < KEY_PIECES / 2; ++i)
#pragma unroll
                for (int n = 0; n < 2; ++n) {
                    cosine[i][n] = *(const float4*)(angles + 32 * i + 4 * n);
                    sine[i][n] = *(const float4*)(angles + D / 2 + 32 * i + 4 * n);
                }
        };
        auto rotate = [&](u32x4 (&x)[KEY_PIECES]) {  // columns d and d + D / 2 are a pair; this lane has both
#pragma unroll
            for (int i = 0; i < KEY_PIECES / 2; ++i)
#pragma unroll
                for (int w = 0; w < 4; ++w) {
                    const float4 c = cosine[i][w / 2], n = sine[i][w / 2];
                    const float c0 = w & 1 ? c.z : c.x, c1 = w & 1 ? c.w : c.y, s0 = w & 1 ? n.z : n.x, s1 = w & 1 ? n.w : n.y;
                    u32 &lower = x[i].w[w], &upper = x[i + KEY_PIECES / 2].w[w];
                    const float l0 = low(lower), l1 = high(lower), u0 = low(upper), u1 = high(upper);
                    lower = pack(l0 * c0 - u0 * s0, l1 * c1 - u1 * s1);
                    upper = pack(u0 * c0 + l0 * s0, u1 * c1 + l1 * s1);
                }
        };
        load_angles(at.request);
        int turned = at.request;
        wait_previous();

        u32x4 q[KEY_PIECES];
        float best, total, mixed[VALUE_PIECES][8][2];
        int stage = 0;
        for (int unit = begin; unit < end; ++unit) {
            const int item_begin = unit - at.slice, item_end = item_begin + at.slices;
            if (unit == begin || at.slice == 0) {  // a part begins: rotate its queries
                const u16* row = p.qkv + at.request * p.qkv_stride;
                const bool has_new = item_end <= end;
                u32x4 k[KEY_PIECES];
#pragma unroll
                for (int i = 0; i < KEY_PIECES; ++i) {
                    q[i] = load_words(row + (at.head * GROUP + min(g, GROUP - 1)) * D + 32 * i + 8 * t);
                    k[i] = load_words(row + (p.kv_heads * GROUP + at.head) * D + 32 * i + 8 * t);
                }
                if (turned != at.request) load_angles(turned = at.request);
                rotate(q);
                best = -INFINITY, total = 0.f;
#pragma unroll
                for (int i = 0; i < VALUE_PIECES; ++i)
#pragma unroll
                    for (int j = 0; j < 8; ++j) mixed[i][j][0] = mixed[i][j][1] = 0.f;
                if (has_new) {  // its last token is the new one: write k and v, start the softmax from them
                    const i64 slot = p.slots[at.request];
                    const size_t to = slot * pitch + at.head * D;
                    const u16* v_row = row + (p.kv_heads * (GROUP + 1) + at.head) * D;
                    rotate(k);
                    float score = 0.f;
#if KIND
                    float values[KEY_PIECES][8], news[2 * VALUE_PIECES][8];
#pragma unroll
                    for (int i = 0; i < KEY_PIECES; ++i)
#pragma unroll
                        for (int j = 0; j < 8; ++j) values[i][j] = j & 1 ? high(k[i].w[j / 2]) : low(k[i].w[j / 2]);
                    const size_t scale_at = slot * p.kv_heads + at.head;
                    store_narrow(values, p.k_cache + to, p.k_scale + scale_at, slot >= 0 && g == 0, slot >= 0 && lane == 0,
                                 [&](int i) { return 32 * i + 8 * t; });
#pragma unroll
                    for (int i = 0; i < KEY_PIECES; ++i)
#pragma unroll
                        for (int w = 0; w < 4; ++w)
                            score += low(q[i].w[w]) * values[i][2 * w] + high(q[i].w[w]) * values[i][2 * w + 1];
#else
#pragma unroll
                    for (int i = 0; i < KEY_PIECES; ++i) {
                        if (slot >= 0 && g == 0) *(u32x4*)(p.k_cache + to + 32 * i + 8 * t) = k[i];
#pragma unroll
                        for (int w = 0; w < 4; ++w)
                            score += low(q[i].w[w]) * low(k[i].w[w]) + high(q[i].w[w]) * high(k[i].w[w]);
                    }
#endif
                    score += __shfl_xor_sync(~0u, score, 1);
                    score += __shfl_xor_sync(~0u, score, 2);
                    best = score * p.scale;
                    total = t == 0 ? 1.f : 0.f;  // every lane counts its own columns
#if KIND
#pragma unroll
                    for (int i = 0; i < 2 * VALUE_PIECES; ++i) {
                        const u32x4 v = load_words(v_row + 64 * (i / 2) + 16 * t + 8 * (i % 2));
#pragma unroll
                        for (int j = 0; j < 8; ++j) news[i][j] = j & 1 ? high(v.w[j / 2]) : low(v.w[j / 2]);
                    }
                    store_narrow(news, p.v_cache + to, p.v_scale + scale_at, slot >= 0 && g == 0, slot >= 0 && lane == 0,
                                 [&](int i) { return 64 * (i / 2) + 16 * t + 8 * (i % 2); });
#pragma unroll
                    for (int i = 0; i < VALUE_PIECES; ++i)
#pragma unroll
                        for (int n = 0; n < 2; ++n)
#pragma unroll
                            for (int j = 0; j < 8; ++j) mixed[i][j][n] = news[2 * i + n][j];
#else
#pragma unroll
                    for (int i = 0; i < VALUE_PIECES; ++i)
#pragma unroll
                        for (int n = 0; n < 2; ++n) {
                            const u32x4 v = load_words(v_row + 64 * i + 16 * t + 8 * n);
                            if (slot >= 0 && g == 0) *(u32x4*)(p.v_cache + to + 64 * i + 16 * t + 8 * n) = v;
#pragma unroll
                            for (int j = 0; j < 8; ++j) mixed[i][j][n] = j & 1 ? high(v.w[j / 2]) : low(v.w[j / 2]);
                        }
#endif
                }
            }

            const int here = (at.first + at.slice) * SLICE, cached = at.length - 1;
            const u32 keys = ring + stage * 2 * TILE_BYTES, values = keys + TILE_BYTES;
            wait_groups<STAGES - 1>();
            __syncwarp();
            float score[2][2] = {{0.f, 0.f}, {0.f, 0.f}};  // tokens 8 h + 2 t, + 1 of query head g
#pragma unroll
            for (int i = 0; i < KEY_PIECES; ++i)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const u32x4 k = load_eight<key_place>(keys, 8 * h + g, 4 * i + t);
                    mma(score[h], q[i].w[0], q[i].w[1], k.w[0], k.w[1]);
                    mma(score[h], q[i].w[2], q[i].w[3], k.w[2], k.w[3]);
                }
#if KIND
            auto scale_of = [&](int cache, int token) {  // its half of the word
                const u32 word = load_shared_word(scales + ((stage * 2 + cache) * SLICE + token) * 4);
                return fp16_to_float((u16)(token * p.kv_heads + at.head & 1 ? word >> 16 : word));
            };
#pragma unroll
            for (int h = 0; h < 2; ++h)
#pragma unroll
                for (int e = 0; e < 2; ++e) score[h][e] *= scale_of(0, 8 * h + 2 * t + e);
#endif
            float largest = -INFINITY;
#pragma unroll
            for (int h = 0; h < 2; ++h)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int token = here + 8 * h + 2 * t + e;
                    score[h][e] = token < cached && token >= at.oldest ? score[h][e] * p.scale : -INFINITY;
                    largest = fmaxf(largest, score[h][e]);
                }
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
            const float new_best = fmaxf(best, largest);  // finite: a slice has a cached token, or the new one came first
            const float fade = power_of_two(best - new_best);
            best = new_best;
            float weight[2][2];
            total *= fade;
#pragma unroll
            for (int h = 0; h < 2; ++h)
#pragma unroll
                for (int e = 0; e < 2; ++e) total += weight[h][e] = power_of_two(score[h][e] - new_best);
#if KIND
#pragma unroll
            for (int h = 0; h < 2; ++h)
#pragma unroll
                for (int e = 0; e < 2; ++e) weight[h][e] *= scale_of(1, 8 * h + 2 * t + e);
#endif
            const u32 a0 = pack(weight[0][0], weight[0][1]), a2 = pack(weight[1][0], weight[1][1]);
#pragma unroll
            for (int i = 0; i < VALUE_PIECES; ++i) {
                u32x4 v[4];  // tokens 2 t, 2 t + 1, 2 t + 8, 2 t + 9
#pragma unroll
                for (int m = 0; m < 4; ++m) v[m] = load_eight<value_place>(values, 2 * t + (m & 1) + (m >> 1) * 8, 8 * i + g);
#pragma unroll
                for (int j = 0; j < 8; ++j) {
                    mixed[i][j][0] *= fade;
                    mixed[i][j][1] *= fade;
                    mma(mixed[i][j], a0, a2, side_by_side(v[0].w[j / 2], v[1].w[j / 2], j & 1),
                        side_by_side(v[2].w[j / 2], v[3].w[j / 2], j & 1));
                }
            }
            __syncwarp();
            request_next(stage);
            if (++stage == STAGES) stage = 0;

            const int item = at.request * p.kv_heads + at.head;
            if (unit + 1 == item_end || unit + 1 == end) {  // the part ends
                total += __shfl_xor_sync(~0u, total, 1);
                total += __shfl_xor_sync(~0u, total, 2);
                const bool continued = item_begin < begin, whole = !continued && item_end <= end;
                if (!whole && !continued) {
                    wait_groups<0>();  // it lies over the tiles: no copy may still arrive there
                    __syncwarp();
                }
                Part& part = continued ? s.continued[warp] : *(Part*)s.tiles[warp];
                if (!whole && lane == 0) s.owner[warp][!continued] = Owner{item, item_begin, item_end};
                if (g < GROUP) {
                    if (!whole && t == 0) part.best[g] = best, part.total[g] = total;
#pragma unroll
                    for (int i = 0; i < VALUE_PIECES; ++i)
#pragma unroll
                        for (int n = 0; n < 2; ++n)
#pragma unroll
                            for (int j = 0; j < 8; j += 4) {
                                const float4 v = {mixed[i][j][n], mixed[i][j + 1][n], mixed[i][j + 2][n], mixed[i][j + 3][n]};
                                const int column = 64 * i + 16 * t + 8 * n + j;
                                if (whole)
                                    store_values(out_of(p, item) + g * D + column, v, total);
                                else
                                    *(float4*)&part.sums[g][column] = v;
                            }
                }
            }
            at.advance(p);
        }
    } else {
        wait_previous();
    }
    release_next();
    __syncthreads();

    // Add up the parts of this CTA, item by item in the order of the line; two of them at most are shared with other CTAs.
    auto part_of = [&](int n) -> const Part& { return n & 1 ? *(const Part*)s.tiles[n / 2] : s.continued[n / 2]; };
    auto owner_of = [&](int n) -> const Owner& { return s.owner[n / 2][n & 1]; };
    Owner crossing[2] = {{-1, 0, 0}, {-1, 0, 0}};
    for (int n = 0; n < 2 * WARPS; ++n) {
        const Owner owner = owner_of(n);
        if (owner.item < 0) continue;
        int last = n;
        for (int m = n + 1; m < 2 * WARPS; ++m)
            if (owner_of(m).item == owner.item) last = m;
        const bool continued = owner.begin < cta_begin, whole = !continued && owner.end <= cta_end;
        if (!whole) crossing[!continued] = owner;
        Part& to = ((Part*)p.partial)[blockIdx.x * 2 + !continued];
        for (int i = thread; i < GROUP * D / 4; i += THREADS) {
            const int r = i * 4 / D;
            Sum sum;
            for (int m = n; m <= last; ++m)
                if (owner_of(m).item == owner.item) sum.best = fmaxf(sum.best, part_of(m).best[r]);
            for (int m = n; m <= last; ++m)
                if (owner_of(m).item == owner.item)
                    sum.add(part_of(m).best[r], part_of(m).total[r], ((const float4*)part_of(m).sums)[i]);
            if (whole) {
                store_values(out_of(p, owner.item) + i * 4, sum.value, sum.total);
            } else {
                ((float4*)to.sums)[i] = sum.value;
                if (i * 4 % D == 0) to.best[r] = sum.best, to.total[r] = sum.total;
            }
        }
        n = last;
    }
    if (crossing[0].item < 0 && crossing[1].item < 0) return;
    __threadfence();  // what this thread stored comes before the arrival
    __syncthreads();
    if (thread < 2) {
        const Owner owner = crossing[thread];
        bool finish = false;
        if (owner.item >= 0) {
            finish = atomicAdd(p.arrivals + owner.item, 1) == (owner.end - 1) / share - owner.begin / share;
            if (finish) p.arrivals[owner.item] = 0;
        }
        s.finish[thread] = finish;
        __threadfence();
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < 2; ++n)
        if (s.finish[n]) combine(p, crossing[n], share, thread);
}
