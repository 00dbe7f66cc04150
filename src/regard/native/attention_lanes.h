// Attention to few keys, a register of queries at a time. Scores, weights and their gradients lie key by key, so that
// each lane is a query, and products are dense. The backward pass has the weights from the forward pass: those that are
// not zero if they are few, else all of them.
#pragma once

#include "attention_call.h"
#include "row_lanes.h"

namespace {

constexpr int64_t short_keys = 64;   // of so many keys at most; with more it pays to skip those without weight
constexpr int64_t short_block = 64;  // queries at a time, a multiple of every `wide`

// Whether a call goes this way. `room`: that for weights, or -1 if none are kept.
static bool in_lanes(const Attention& c, int64_t room) {
    bool fits = c.n <= short_keys && c.e % wide == 0 && c.d % wide == 0;
    fits = fits && (room < 0 || c.heads * padded(c.rows) * c.n <= room);
    for (int64_t h = 0; fits && h < (c.per_head ? c.heads : 1); ++h) fits = c.alpha(h) >= softest;
    return fits;
}

// Where the weights of the queries from `a` on of a head are, key by key.
INLINE int64_t weights_from(const Attention& c, int64_t h, int64_t a) { return (h * padded(c.rows) + a) * c.n; }

// Scores of the queries a to b of a head, with mask and bias, key by key. False for a number that is not finite.
static bool lane_scores(const Attention& c, int64_t h, int64_t a, int64_t b, float* scores, Workspace& w) {
    const int64_t rows = b - a, step = padded(rows);
    float* packed = fitted(w.list, step * c.e);
    pack(c.q + (h * c.rows + a) * c.e, rows, c.e, c.scale, packed);
    inner_products(c.k + h * c.n * c.e, c.n, c.e, packed, rows, rows, scores, step);
    const float hidden = -std::numeric_limits<float>::infinity();
    for (int64_t i = 0; i < rows; ++i) {
        float* x = scores + i;
        const int64_t keys = c.seen(a + i);
        if (c.bias.count > 0) {
            const float* more = c.bias.row(h, a + i, c.n);
            for (int64_t j = 0; j < keys; ++j) x[j * step] += more[j];
        }
        if (c.mask.count > 0) {
            const uint8_t* takes_part = c.mask.row(h, a + i, c.n);
            for (int64_t j = 0; j < keys; ++j) x[j * step] = takes_part[j] ? x[j * step] : hidden;
        }
        for (int64_t j = keys; j < c.n; ++j) x[j * step] = hidden;
    }
    return c.bias.count == 0 || below_infinity(scores, c.n * step);
}

// The weights of a register of queries, key by key, as lists: those of number i begin at weight[i] and place[i], with
// room for n and a register, and are count[i].
INLINE void lists_of(const float* weights, int64_t n, int64_t step, float* weight, int32_t* place, int32_t* count) {
    const int64_t room = padded(n) + wide;
    int64_t j = 0;
    std::fill(count, count + wide, 0);
#if defined(__AVX512F__) && defined(__GNUC__) && !defined(REGARD_NO_VECTORS)
    __m512i at = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (; j + wide <= n; j += wide, at = _mm512_add_epi32(at, _mm512_set1_epi32(wide))) {
        Wide rows[wide];
        transposed(weights + j * step, step, rows);
        for (int64_t i = 0; i < wide; ++i) {
            const __m512 p = (__m512)rows[i];
            const __mmask16 in = _mm512_cmp_ps_mask(p, _mm512_setzero_ps(), _CMP_GT_OQ);
            _mm512_storeu_ps(weight + i * room + count[i], _mm512_maskz_compress_ps(in, p));
            _mm512_storeu_si512(place + i * room + count[i], _mm512_maskz_compress_epi32(in, at));
            count[i] += static_cast<int32_t>(_mm_popcnt_u32(in));
        }
    }
#endif
    for (; j < n; ++j)
        for (int64_t i = 0; i < wide; ++i) {
            const float p = weights[j * step + i];
            weight[i * room + count[i]] = p;
            place[i * room + count[i]] = static_cast<int32_t>(j);
            count[i] += p > 0.0f;
        }
}

// Keep the weights of the queries from `a` on as lists of those that are not zero if these are few; else false.
static bool kept_as_lists(const Attention& c, int64_t h, int64_t a, const float* weights, int64_t rows,
                          const Supports& kept, Workspace& w) {
    const int64_t step = padded(rows), row = h * c.rows + a, room = padded(c.n) + wide;
    float* weight = fitted(w.list, wide * room);
    int32_t *place = fitted(w.place, wide * room), count[wide];
    int64_t next = weights_from(c, h, a), end = next + rows * c.n / 3;
    for (int64_t first = 0; first < rows; first += wide) {
        lists_of(weights + first, c.n, step, weight, place, count);
        for (int64_t i = 0; i < std::min(wide, rows - first); ++i) {
            if (next + count[i] > end) return false;
            std::memcpy(kept.weight + next, weight + i * room, count[i] * sizeof(float));
            std::memcpy(kept.place + next, place + i * room, count[i] * sizeof(int32_t));
            kept.start[row + first + i] = next;
            kept.count[row + first + i] = count[i];
            next += count[i];
        }
    }
    return true;
}

// Contexts of the queries first to last of a head, whose numbers are in range. False for a score that is not finite.
static bool forward_lanes(const Attention& c, int64_t h, int64_t first, int64_t last, float* out, const Supports* kept,
                          Workspace& w) {
    for (int64_t a = first; a < last; a += short_block) {
        const int64_t b = std::min(a + short_block, last), rows = b - a, step = padded(rows), row = h * c.rows + a;
        float* weights = fitted(w.scores, c.n * step);
        if (!lane_scores(c, h, a, b, weights, w)) return false;
        for (int64_t i = 0; i < step; i += wide) lane_weights(weights + i, c.n, step, c.alpha(h));
        product({weights, 1, step}, rows, c.v + h * c.n * c.d, c.d, c.d, c.n, out + row * c.d, c.d, false);
        if (kept == nullptr || kept_as_lists(c, h, a, weights, rows, *kept, w)) continue;
        std::fill(kept->start + row, kept->start + row + rows, -1);
        std::memcpy(kept->weight + weights_from(c, h, a), weights, c.n * step * sizeof(float));
    }
    return true;
}

// Gradients of the queries first to last of a head; those in keys and values are added to what is there.
static void backward_lanes(const Attention& c, int64_t h, int64_t first, int64_t last, const KnownSupports& kept,
                           Gradients& g, Workspace& w) {
    const float *q = c.q + h * c.rows * c.e, *k = c.k + h * c.n * c.e, *v = c.v + h * c.n * c.d;
    for (int64_t a = first; a < last; a += short_block) {
        const int64_t rows = std::min(short_block, last - a), step = padded(rows), row = h * c.rows + a;
        if (kept.start[row] >= 0) {
            for (int64_t i = 0; i < rows; ++i) {
                const int64_t at = kept.start[row + i];
                backward_row(c, h, a + i, kept.place + at, kept.weight + at, kept.count[row + i], g, w);
            }
            continue;
        }
        const float *weights = kept.weight + weights_from(c, h, a), *grad = g.of_context + row * c.d;
        float *slope = fitted(w.scores, c.n * step), *hold = fitted(w.hold, c.n * wide);
        float* packed = fitted(w.list, step * c.d);
        pack(grad, rows, c.d, 1.0f, packed);
        inner_products(v, c.n, c.d, packed, rows, rows, slope, step);
        for (int64_t i = 0; i < step; i += wide)
            g.alpha += lane_slopes(weights + i, slope + i, c.n, step, c.alpha(h), c.scale, g.learned, hold);
        product({slope, 1, step}, rows, k, c.e, c.e, c.n, g.q + row * c.e, c.e, false);
        product({slope, step, 1}, c.n, q + a * c.e, c.e, c.e, rows, g.k, c.e, true);
        product({weights, step, 1}, c.n, grad, c.d, c.d, rows, g.v, c.d, true);
    }
}

}  // namespace
