/* Decode kernels for CPUs: small-batch linears (float32, bfloat16, INT4, INT8 weights), paged attention and the
 * small operators between them. Plain C with GCC/Clang vectors of 16 floats; compiled on first use for the machine
 * it runs on. Arithmetic is float32 throughout; tensors are float32 (type 0) or bfloat16 (type 1).
 *
 * At one to some tens of tokens a linear is bound by reading its weight: each row is read once, used for all
 * tokens, and expanded in registers, so a 4-bit weight costs a quarter of the time of a 16-bit one.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__AVX512F__) || defined(__F16C__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define EXPORT __attribute__((visibility("default")))
#define MAX_TOKENS 8    /* accumulators of a tile: rows x tokens <= 16 */
#define AHEAD 8192      /* bytes, measured: 4 to 16 KiB read a third faster than none */
#define MAX_GROUPS 1024 /* groups of 32 columns in a quantised row */

typedef float vec __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t veci __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint16_t vech __attribute__((vector_size(32), aligned(2), may_alias));
typedef uint8_t vecb __attribute__((vector_size(16), aligned(1), may_alias));
typedef int8_t vecs __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint16_t bf16;

INLINE vec splat(float value) { return value - (vec){}; }

INLINE float sum16(vec v) {
#ifdef __AVX512F__
    return _mm512_reduce_add_ps((__m512)v);
#else
    float total = 0;
    for (int i = 0; i < 16; i++) total += v[i];
    return total;
#endif
}

/* GCC turns __builtin_convertvector of narrow lanes into many shuffles: name the instruction where there is one. */
INLINE vec widen(vech half) {
#ifdef __AVX512F__
    return (vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)half), 16);
#else
    return (vec)(__builtin_convertvector(half, veci) << 16);
#endif
}

INLINE veci load_bytes(const uint8_t *at) {
#ifdef __AVX512F__
    return (veci)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)at));
#else
    return __builtin_convertvector(*(const vecb *)at, veci);
#endif
}

INLINE vec load_signed(const int8_t *at) {
#ifdef __AVX512F__
    return (vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)at)));
#else
    return __builtin_convertvector(__builtin_convertvector(*(const vecs *)at, veci), vec);
#endif
}

INLINE vech narrow(vec v) { /* round to nearest even; NaN stays NaN */
    veci bits = (veci)v;
    veci rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    veci nan = (veci)(v != v);
    rounded = (rounded & ~nan) | (((bits >> 16) | 0x40) & nan);
#ifdef __AVX512F__
    return (vech)_mm512_cvtepi32_epi16((__m512i)rounded);
#else
    return __builtin_convertvector(rounded & 0xffff, vech);
#endif
}

INLINE vec load(const void *at, long index, int type) {
    return type ? widen(*(const vech *)((const bf16 *)at + index)) : *(const vec *)((const float *)at + index);
}

INLINE void store(void *at, long index, int type, vec v) {
    if (type) *(vech *)((bf16 *)at + index) = narrow(v);
    else *(vec *)((float *)at + index) = v;
}

INLINE float load1(const void *at, long index, int type) {
    if (!type) return ((const float *)at)[index];
    uint32_t bits = (uint32_t)((const bf16 *)at)[index] << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

INLINE void store1(void *at, long index, int type, float value) {
    if (!type) { ((float *)at)[index] = value; return; }
    uint32_t bits;
    memcpy(&bits, &value, 4);
    ((bf16 *)at)[index] = value != value ? (bits >> 16) | 0x40 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

INLINE float half_to_float(uint16_t half) {
#ifdef __F16C__
    return _cvtsh_ss(half);
#else
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = (uint32_t)(half & 0x7fff) << 13, bits;
    float value;
    memcpy(&value, &rest, 4);
    value *= 0x1p112f;
    if ((half & 0x7c00) == 0x7c00) { bits = rest | 0x7f800000; memcpy(&value, &bits, 4); }
    memcpy(&bits, &value, 4);
    bits |= sign;
    memcpy(&value, &bits, 4);
    return value;
#endif
}

INLINE vec choose(veci mask, vec yes, vec no) { return (vec)(((veci)yes & mask) | ((veci)no & ~mask)); }

/* exp(x) to about 1e-7: 2^n times a polynomial of the fraction. */
INLINE vec exp16(vec x) {
    x = choose(x < splat(-87.0f), splat(-87.0f), x);
    x = choose(x > splat(88.0f), splat(88.0f), x);
    vec scaled = x * 1.44269504088896f;
    veci whole = __builtin_convertvector(scaled + choose(scaled < splat(0), splat(-0.5f), splat(0.5f)), veci);
    vec n = __builtin_convertvector(whole, vec);
    vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
    vec p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * (vec)((whole + 127) << 23);
}

/* ---- linears ------------------------------------------------------------------------------------------------- */

/* A weight [N, K]: kind 0 float32, 1 bfloat16, 2 INT4 in groups of 32, 3 INT8 in groups of 32. K % 32 == 0.
 * INT4 group: 16 bytes, byte i = code[i] | code[i + 16] << 4. w = code * scale + minimum (INT8: no minimum).
 * scale and minimum are [N, K / 32] in half precision (wide_scales 0) or float32 (1). */
typedef struct {
    const void *data, *scale, *minimum;
    long rows, columns, kind, wide_scales;
} weight_t;

/* n scales of a row as float32: where they are, or converted into `room`. */
INLINE const float *row_scales(const void *table, long first, long n, long wide, float *room) {
    if (wide) return (const float *)table + first;
    const uint16_t *halves = (const uint16_t *)table + first;
    long i = 0;
#ifdef __AVX512F__
    for (; i + 16 <= n; i += 16)
        *(vec *)(room + i) = (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(halves + i)));
#endif
    for (; i < n; i++) room[i] = half_to_float(halves[i]);
    return room;
}

/* Two vectors of weights: elements at .. at + 31, one group. */
INLINE void expand(const weight_t *w, long at, float scale, float minimum, int kind, vec *low, vec *high) {
    if (kind == 0) {
        *low = *(const vec *)((const float *)w->data + at);
        *high = *(const vec *)((const float *)w->data + at + 16);
    } else if (kind == 1) {
        *low = widen(*(const vech *)((const bf16 *)w->data + at));
        *high = widen(*(const vech *)((const bf16 *)w->data + at + 16));
    } else if (kind == 2) {
        veci bytes = load_bytes((const uint8_t *)w->data + at / 2);
#ifdef __AVX512F__
        /* All sixteen values a group can take, then a look-up by the low four bits of each lane. */
        const vec steps = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        __m512 values = (__m512)(steps * scale + minimum);
        *low = (vec)_mm512_permutexvar_ps((__m512i)bytes, values);
        *high = (vec)_mm512_permutexvar_ps((__m512i)(bytes >> 4), values);
#else
        *low = __builtin_convertvector(bytes & 15, vec) * scale + minimum;
        *high = __builtin_convertvector(bytes >> 4, vec) * scale + minimum;
#endif
    } else {
        *low = load_signed((const int8_t *)w->data + at) * scale;
        *high = load_signed((const int8_t *)w->data + at + 16) * scale;
    }
}

INLINE void tile(const weight_t *w, const float *x, long first, int rows, int tokens, int kind, float *out) {
    vec sums[4][MAX_TOKENS];
    float room[kind >= 2 ? 8 * MAX_GROUPS : 1];
    const float *scales[4], *minimums[4];
    long groups = w->columns / 32;
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        long at = (first + r) * groups;
        if (kind >= 2) scales[r] = row_scales(w->scale, at, groups, w->wide_scales, room + r * MAX_GROUPS);
        if (kind == 2) minimums[r] = row_scales(w->minimum, at, groups, w->wide_scales, room + (4 + r) * MAX_GROUPS);
#pragma GCC unroll 8
        for (int m = 0; m < tokens; m++) sums[r][m] = (vec){};
    }
    for (long group = 0; group < groups; group++) {
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            vec low, high;
            /* The hardware prefetcher stops at each 4 KiB page: ask for the bytes some lines ahead. */
            long next = (first + r) * w->columns + group * 32;
            const char *ahead = (const char *)w->data + AHEAD;
            if (kind == 0) {
                __builtin_prefetch(ahead + next * 4);
                __builtin_prefetch(ahead + next * 4 + 64);
            } else if (kind == 1) {
                __builtin_prefetch(ahead + next * 2);
            } else if (kind == 2) {
                if (!(group & 3)) __builtin_prefetch(ahead + next / 2);
            } else if (!(group & 1)) {
                __builtin_prefetch(ahead + next);
            }
            expand(w, (first + r) * w->columns + group * 32, kind >= 2 ? scales[r][group] : 0,
                   kind == 2 ? minimums[r][group] : 0, kind, &low, &high);
#pragma GCC unroll 8
            for (int m = 0; m < tokens; m++) {
                const float *at = x + m * w->columns + group * 32;
                sums[r][m] += low * *(const vec *)at;
                sums[r][m] += high * *(const vec *)(at + 16);
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int m = 0; m < tokens; m++) out[r * MAX_TOKENS + m] = sum16(sums[r][m]);
}

#define TILE(R, M) case M: tile(w, x, first, R, M, kind, out); break;
INLINE void tiles(const weight_t *w, const float *x, long first, int rows, int tokens, int kind, float *out) {
    if (rows == 4) {
        switch (tokens) { TILE(4, 1) TILE(4, 2) TILE(4, 3) TILE(4, 4) }
    } else if (rows == 2) {
        switch (tokens) { TILE(2, 5) TILE(2, 6) TILE(2, 7) TILE(2, 8) }
    } else {
        switch (tokens) {
            TILE(1, 1) TILE(1, 2) TILE(1, 3) TILE(1, 4) TILE(1, 5) TILE(1, 6) TILE(1, 7) TILE(1, 8)
        }
    }
}

INLINE void rows_of(const weight_t *w, const float *x, const void *bias, void *y, long tokens, int type, int kind,
                    long begin, long end) {
    float out[4 * MAX_TOKENS];
    for (long row = begin; row < end;) {
        long left = end - row;
        int rows = 1;
        for (long m = 0; m < tokens; m += MAX_TOKENS) {
            int count = tokens - m < MAX_TOKENS ? (int)(tokens - m) : MAX_TOKENS;
            /* All chunks of tokens must take the same rows: the first, largest chunk decides. */
            if (m == 0) rows = count <= 4 && left >= 4 ? 4 : count > 4 && left >= 2 ? 2 : 1;
            for (int part = 0; part < rows;) {
                int step = rows == 2 && count <= 4 ? 1 : rows;
                tiles(w, x + m * w->columns, row + part, step, count, kind, out);
                for (int r = 0; r < step; r++) {
                    float add = bias ? load1(bias, row + part + r, type) : 0.0f;
                    for (int i = 0; i < count; i++)
                        store1(y, (m + i) * w->rows + row + part + r, type, out[r * MAX_TOKENS + i] + add);
                }
                part += step;
            }
        }
        row += rows;
    }
}

/* y[M, N] = x[M, K] w^T + bias. `scratch` holds M * K floats when x is bfloat16. */
EXPORT void sits_linear(const weight_t *w, const void *x, const void *bias, void *y, float *scratch, long tokens,
                        long type) {
    const float *wide = x;
    if (type) {
        for (long i = 0; i < tokens * w->columns; i += 16) *(vec *)(scratch + i) = load(x, i, 1);
        wide = scratch;
    }
    long blocks = (w->rows + 15) / 16;
#pragma omp parallel for schedule(static)
    for (long block = 0; block < blocks; block++) {
        long begin = block * 16, end = begin + 16 < w->rows ? begin + 16 : w->rows;
        if (w->kind == 0) rows_of(w, wide, bias, y, tokens, (int)type, 0, begin, end);
        else if (w->kind == 1) rows_of(w, wide, bias, y, tokens, (int)type, 1, begin, end);
        else if (w->kind == 2) rows_of(w, wide, bias, y, tokens, (int)type, 2, begin, end);
        else rows_of(w, wide, bias, y, tokens, (int)type, 3, begin, end);
    }
}

/* Rows begin..end of a weight as float32 [end - begin, K], for prompts that a matrix library multiplies. */
EXPORT void sits_expand(const weight_t *w, float *out, long begin, long end) {
#pragma omp parallel for schedule(static)
    for (long row = begin; row < end; row++) {
        long groups = w->columns / 32, from = row * w->columns, quantised = w->kind >= 2;
        float room[2 * MAX_GROUPS], *to = out + (row - begin) * w->columns;
        const float *scales = quantised ? row_scales(w->scale, row * groups, groups, w->wide_scales, room) : 0;
        const float *minimums =
            w->kind == 2 ? row_scales(w->minimum, row * groups, groups, w->wide_scales, room + MAX_GROUPS) : 0;
        for (long group = 0; group < groups; group++) {
            vec low, high;
            long at = from + group * 32;
            if (w->kind == 1) expand(w, at, 0, 0, 1, &low, &high);
            else if (w->kind == 2) expand(w, at, scales[group], minimums[group], 2, &low, &high);
            else expand(w, at, scales[group], 0, 3, &low, &high);
            *(vec *)(to + group * 32) = low;
            *(vec *)(to + group * 32 + 16) = high;
        }
    }
}

/* ---- norms, activation, rotary embedding --------------------------------------------------------------------- */

/* out = rms_norm(x + residual) * weight; the sum goes to `summed`. residual may be NULL (then summed is unused). */
EXPORT void sits_add_rms_norm(const void *x, const void *residual, const void *weight, void *out, void *summed,
                              long tokens, long width, float eps, long type) {
#pragma omp parallel for schedule(static) if (tokens >= 16)
    for (long token = 0; token < tokens; token++) {
        long row = token * width;
        vec squares = {};
        for (long i = 0; i < width; i += 16) {
            vec value = load(x, row + i, (int)type);
            if (residual) {
                value += load(residual, row + i, (int)type);
                store(summed, row + i, (int)type, value);
                value = load(summed, row + i, (int)type); /* as rounded */
            }
            squares += value * value;
        }
        vec scale = splat(1.0f / sqrtf(sum16(squares) / (float)width + eps));
        const void *source = residual ? summed : x;
        for (long i = 0; i < width; i += 16) {
            vec normed = load(source, row + i, (int)type) * scale;
            if (type) normed = widen(narrow(normed)); /* the reference rounds before the weight */
            store(out, row + i, (int)type, normed * load(weight, i, (int)type));
        }
    }
}

/* gate_up[T, 2I] -> silu(gate) * up, [T, I] */
EXPORT void sits_silu_mul(const void *gate_up, void *out, long tokens, long width, long type) {
#pragma omp parallel for schedule(static) if (tokens >= 8)
    for (long token = 0; token < tokens; token++) {
        for (long i = 0; i < width; i += 16) {
            vec gate = load(gate_up, token * 2 * width + i, (int)type);
            vec up = load(gate_up, token * 2 * width + width + i, (int)type);
            vec silu = gate / (1.0f + exp16(-gate));
            if (type) silu = widen(narrow(silu));
            store(out, token * width + i, (int)type, silu * up);
        }
    }
}

/* Rotate q and k of qkv[T, (H + 2K) D], write k and v to the cache slots, q[T, H, D] to out. cos_sin is float32
 * [positions, rotary]: cos in the first half of the columns, sin in the second. rotary % 32 == 0, D % 16 == 0. */
EXPORT void sits_rope_kv_write(const void *qkv, const float *cos_sin, const int64_t *positions, const int64_t *slots,
                               void *q, void *k_cache, void *v_cache, long tokens, long heads, long kv_heads,
                               long head_dim, long rotary, long type) {
    long half = rotary / 2, kv_size = kv_heads * head_dim, width = (heads + 2 * kv_heads) * head_dim;
#pragma omp parallel for schedule(static) if (tokens >= 16)
    for (long token = 0; token < tokens; token++) {
        const float *cosines = cos_sin + positions[token] * rotary, *sines = cosines + half;
        long slot = slots[token];
        for (long head = 0; head < heads + kv_heads; head++) {
            void *out = head < heads ? q : k_cache;
            if (head >= heads && slot < 0) break;
            long from = token * width + head * head_dim;
            long to = head < heads ? (token * heads + head) * head_dim : slot * kv_size + (head - heads) * head_dim;
            for (long i = 0; i < half; i += 16) {
                vec first = load(qkv, from + i, (int)type), second = load(qkv, from + half + i, (int)type);
                vec c = *(const vec *)(cosines + i), s = *(const vec *)(sines + i);
                store(out, to + i, (int)type, first * c - second * s);
                store(out, to + half + i, (int)type, second * c + first * s);
            }
            for (long i = rotary; i < head_dim; i += 16) store(out, to + i, (int)type, load(qkv, from + i, (int)type));
        }
        if (slot >= 0) {
            long bytes = kv_size * (type ? 2 : 4);
            memcpy((char *)v_cache + slot * bytes, (const char *)qkv + (token + 1) * width * (type ? 2 : 4) - bytes, bytes);
        }
    }
}

/* ---- attention of decode rows -------------------------------------------------------------------------------- */

/* One query token per request over the paged cache. The query heads of a KV head share each key and value read.
 * Softmax runs online over pieces of PIECE tokens, so memory does not grow with the context. */
#define PIECE 64
#define MAX_GROUP 16
#define MAX_DIM 256

INLINE void attend(const void *q, const void *k_cache, const void *v_cache, const int32_t *blocks, long context,
                   long begin, long block_size, long kv_heads, long kv_head, long group, long head_dim, float scale,
                   void *out, int type) {
    float queries[MAX_GROUP][MAX_DIM], sums[MAX_GROUP][MAX_DIM], scores[MAX_GROUP][PIECE];
    float top[MAX_GROUP], total[MAX_GROUP];
    long slots[PIECE], stride = kv_heads * head_dim;
    for (long g = 0; g < group; g++) {
        for (long i = 0; i < head_dim; i += 16) {
            *(vec *)(queries[g] + i) = load(q, g * head_dim + i, type) * scale;
            *(vec *)(sums[g] + i) = (vec){};
        }
        top[g] = -INFINITY;
        total[g] = 0;
    }
    for (long start = begin; start < context; start += PIECE) {
        long count = context - start < PIECE ? context - start : PIECE;
        for (long t = 0; t < count; t++) {
            long token = start + t;
            slots[t] = (blocks[token / block_size] * block_size + token % block_size) * stride + kv_head * head_dim;
            for (long g = 0; g < group; g++) {
                vec dot = {};
                for (long i = 0; i < head_dim; i += 16) dot += *(vec *)(queries[g] + i) * load(k_cache, slots[t] + i, type);
                scores[g][t] = sum16(dot);
            }
        }
        for (long g = 0; g < group; g++) {
            for (long t = count; t < PIECE; t++) scores[g][t] = -INFINITY;
            float peak = top[g];
            for (long t = 0; t < count; t++) peak = scores[g][t] > peak ? scores[g][t] : peak;
            vec sum = {};
            for (long t = 0; t < PIECE; t += 16) {
                vec weights = exp16(*(vec *)(scores[g] + t) - peak);
                for (long i = 0; i < 16; i++) weights[i] = t + i < count ? weights[i] : 0.0f;
                *(vec *)(scores[g] + t) = weights;
                sum += weights;
            }
            float fade = top[g] == -INFINITY ? 0.0f : expf(top[g] - peak);
            total[g] = total[g] * fade + sum16(sum);
            top[g] = peak;
            for (long i = 0; i < head_dim; i += 16) {
                vec value = *(vec *)(sums[g] + i) * fade;
                for (long t = 0; t < count; t++) value += scores[g][t] * load(v_cache, slots[t] + i, type);
                *(vec *)(sums[g] + i) = value;
            }
        }
    }
    for (long g = 0; g < group; g++)
        for (long i = 0; i < head_dim; i += 16)
            store(out, g * head_dim + i, type, *(vec *)(sums[g] + i) / total[g]);
}

/* q and out are [requests, H, D]; block_tables int32 [requests, table_stride]; window 0 = all. */
EXPORT void sits_decode_attention(const void *q, const void *k_cache, const void *v_cache, const int32_t *block_tables,
                                  const int32_t *context_lens, void *out, long requests, long table_stride,
                                  long block_size, long heads, long kv_heads, long head_dim, float scale, long window,
                                  long type) {
    long group = heads / kv_heads, size = type ? 2 : 4;
#pragma omp parallel for schedule(dynamic, 1) if (requests * kv_heads > 1)
    for (long item = 0; item < requests * kv_heads; item++) {
        long request = item / kv_heads, kv_head = item % kv_heads, context = context_lens[request];
        long begin = window > 0 && context > window ? context - window : 0;
        long at = (request * heads + kv_head * group) * head_dim * size;
        const int32_t *blocks = block_tables + request * table_stride;
        if (type)
            attend((const char *)q + at, k_cache, v_cache, blocks, context, begin, block_size, kv_heads, kv_head, group,
                   head_dim, scale, (char *)out + at, 1);
        else
            attend((const char *)q + at, k_cache, v_cache, blocks, context, begin, block_size, kv_heads, kv_head, group,
                   head_dim, scale, (char *)out + at, 0);
    }
}
