// Attention where most weights are not zero, or keys are few: a register of queries at a time. Scores, weights and their
// gradients lie key by key, so that each lane is a query, and products are dense. Of the weights the backward pass has
// lists if few are not zero, else it computes them again.
#pragma once

#include "attention_call.h"
#include "row_lanes.h"

namespace {

constexpr int64_t short_keys = 64;   // of so many keys at most it pays to skip none
constexpr int64_t short_block = 64;  // queries at a time, a multiple of every `wide`

// Whether all of a call goes this way forward: it is softmax, or has few keys.
static bool in_lanes(const Attention& c) {
    if (!c.per_head && c.alpha(0) == 1.0) return true;
    bool fits = c.n <= short_keys && c.in_registers();
    for (int64_t h = 0; fits && h < (c.per_head ? c.heads : 1); ++h) fits = c.alpha(h) >= softest;
    return fits;
}

// What mask, bias and diagonal add to the scores of query i, in n numbers.
INLINE void added_to(const Attention& c, int64_t h, int64_t i, float* x) {
    const int64_t keys = c.seen(i);
    const float hidden = -std::numeric_limits<float>::infinity();
    const float* more = c.bias.count > 0 ? c.bias.row(h, i, c.n) : nullptr;
    const uint8_t* takes_part = c.mask.count > 0 ? c.mask.row(h, i, c.n) : nullptr;
    if (more != nullptr)
        std::memcpy(x, more, keys * sizeof(float));
    else
        std::memset(x, 0, keys * sizeof(float));
    if (takes_part != nullptr)
        SIMD()
        for (int64_t j = 0; j < keys; ++j) x[j] = takes_part[j] ? x[j] : hidden;
    std::fill(x + keys, x + c.n, hidden);
}

// Scores of the queries a to b of a head, with mask and bias, key by key. False for a number that is not finite.
static bool lane_scores(const Attention& c, int64_t h, int64_t a, int64_t b, float* scores, Workspace& w) {
    const int64_t rows = b - a, step = padded(rows), room = padded(c.n);
    float* packed = fitted(w.list, step * c.e);
    pack(c.q.row(h, a), c.q.step, rows, c.e, c.scale, packed);
    inner_products(c.k.of(h), c.k.step, c.n, c.e, packed, rows, rows, scores, step);
    if (c.bias.count == 0 && c.mask.count == 0 && c.seen(a) == c.n) return true;
    float* more = fitted(w.hold, wide * room);
    for (int64_t first = 0; first < rows; first += wide) {
        for (int64_t i = 0; i < std::min(wide, rows - first); ++i) added_to(c, h, a + first + i, more + i * room);
        for (int64_t j = 0; j < c.n; j += wide) {
            Wide square[wide];
            transposed(more + j, room, square);
            for (int64_t t = 0; t < std::min(wide, c.n - j); ++t) {
                float* x = scores + (j + t) * step + first;
                for (int64_t i = rows - first; i < wide; ++i) square[t][i] = 0.0f;  // no query
                store(x, load(x) + square[t]);
            }
        }
    }
    return c.bias.count == 0 || below_infinity(scores, c.n * step);
}

// The weights of a register of queries, key by key, as lists: those of number i begin at weight[i] and place[i], with
// room for n and a register, and are count[i].
INLINE void lists_of(const float* weights, int64_t n, int64_t step, float* weight, int32_t* place, int32_t* count) {
    const int64_t room = padded(n) + wide;
    int64_t j = 0;
    std::fill(count, count + wide, 0);
    WideWhole at = first_places();
    for (; j + wide <= n; j += wide, at = at + static_cast<int32_t>(wide)) {
        Wide rows[wide];
        transposed(weights + j * step, step, rows);
        for (int64_t i = 0; i < wide; ++i) {
            const int64_t end = i * room + count[i];
            count[i] += static_cast<int32_t>(put_above(rows[i], 0.0f, rows[i], at, weight + end, place + end));
        }
    }
    for (; j < n; ++j)
        for (int64_t i = 0; i < wide; ++i) {
            const float p = weights[j * step + i];
            weight[i * room + count[i]] = p;
            place[i * room + count[i]] = static_cast<int32_t>(j);
            count[i] += p > 0.0f;
        }
}

// Keep up to a register of queries: their edges, and their weights as lists if these are short.
static void keep_lanes(const Attention& c, int64_t row, int64_t rows, const float* weights, int64_t step,
                       const LaneRows& found, const Supports& kept, Store& store, Workspace& w) {
    int64_t entries = 0;
    for (int64_t i = 0; i < rows; ++i) {
        const Edge edge = {found.top[i], double(found.low[i]) + double(found.rest[i]), found.factor[i]};
        keep_edge(kept, row + i, static_cast<int64_t>(found.count[i]), edge);
        entries += kept.count[row + i];
    }
    const int64_t at = c.n > short_keys || 3 * entries > rows * c.n ? -1 : store.take(entries);
    if (at < 0) return;
    const int64_t room = padded(c.n) + wide;
    float* weight = fitted(w.list, wide * room);
    int32_t *place = fitted(w.place, wide * room), count[wide];
    lists_of(weights, c.n, step, weight, place, count);
    for (int64_t i = 0, next = at; i < rows; next += count[i++])
        keep_list(kept, row + i, next, c.n, place + i * room, weight + i * room, count[i]);
}

// Contexts of the queries first to last of a head, whose numbers are in range; `entries` counts the weights that are
// not zero. False for a score that is not finite.
static bool forward_lanes(const Attention& c, int64_t h, int64_t first, int64_t last, const Result& out,
                          const Supports* kept, Store& store, Workspace& w, int64_t& entries) {
    for (int64_t a = first; a < last; a += short_block) {
        const int64_t b = std::min(a + short_block, last), rows = b - a, step = padded(rows), row = h * c.rows + a;
        float* weights = fitted(w.scores, c.n * step);
        if (!lane_scores(c, h, a, b, weights, w)) return false;
        for (int64_t i = 0; i < rows; i += wide) {
            LaneRows found;
            lane_weights(weights + i, c.n, step, c.alpha(h), found);
            const int64_t some = std::min(wide, rows - i);
            for (int64_t r = 0; r < some; ++r) entries += static_cast<int64_t>(found.count[r]);
            if (kept != nullptr) keep_lanes(c, row + i, some, weights + i, step, found, *kept, store, w);
        }
        product({weights, 1, step}, rows, c.v.of(h), c.v.step, c.d, c.n, out.row(h, a), out.step, false);
    }
    return true;
}

// Add slopes that lie key by key to the gradient of the bias, and scale them.
static void add_to_bias(const Attention& c, int64_t a, int64_t rows, float* slope, int64_t step, Gradients& g) {
    for (int64_t first = 0; first < rows; first += wide) {
        int64_t j = 0;
        if (g.bias_rows > 1 && rows - first >= wide)
            for (; j + wide <= c.n; j += wide) {
                Wide square[wide];
                transposed(slope + j * step + first, step, square);
                for (int64_t i = 0; i < wide; ++i) {
                    float* sums = g.bias + (a + first + i) * c.n + j;
                    store(sums, load(sums) + square[i]);
                }
            }
        for (; j < c.n; ++j) {
            const float* x = slope + j * step + first;
            if (g.bias_rows == 1) {
                g.bias[j] += total(load(x));  // lanes without a query have slopes of zero
                continue;
            }
            for (int64_t i = 0; i < std::min(wide, rows - first); ++i) g.bias[(a + first + i) * c.n + j] += x[i];
        }
    }
    for (int64_t j = 0; j < c.n * step; j += wide) store(slope + j, load(slope + j) * c.scale);
}

// Gradients of up to short_block queries of a head, whose weights are computed again; those in keys and values are
// added to what is there.
static void backward_lanes(const Attention& c, int64_t h, int64_t a, int64_t rows, const KnownSupports& kept,
                           Gradients& g, Workspace& w) {
    const int64_t step = padded(rows), row = h * c.rows + a, n = c.n;
    const float* grad = g.of_context.row(h, a);
    float *weights = fitted(w.weights, n * step), *slope = fitted(w.scores, n * step);
    lane_scores(c, h, a, a + rows, weights, w);
    for (int64_t i = 0; i < step; i += wide) {
        LaneRows known = {};
        for (int64_t r = 0; r < std::min(wide, rows - i); ++r) {
            const float* edge = kept.edge + edge_numbers * (row + i + r);
            known.top[r] = edge[0], known.low[r] = edge[1], known.rest[r] = edge[2], known.factor[r] = edge[3];
        }
        lane_weights_at(weights + i, n, step, c.alpha(h), known);
    }
    float *packed = fitted(w.list, step * c.d), *hold = fitted(w.hold, n * wide);
    pack(grad, g.of_context.step, rows, c.d, 1.0f, packed);
    inner_products(c.v.of(h), c.v.step, n, c.d, packed, rows, rows, slope, step);
    const float factor = g.bias == nullptr ? c.scale : 1.0f;
    for (int64_t i = 0; i < step; i += wide)
        g.alpha += lane_slopes(weights + i, slope + i, n, step, c.alpha(h), factor, g.learned, hold);
    if (g.bias != nullptr) add_to_bias(c, a, rows, slope, step, g);
    product({slope, 1, step}, rows, c.k.of(h), c.k.step, c.e, n, g.q.row(h, a), g.q.step, false);
    product({slope, step, 1}, n, c.q.row(h, a), c.q.step, c.e, rows, g.k, g.k_step, true);
    product({weights, step, 1}, n, grad, g.of_context.step, c.d, rows, g.v, g.v_step, true);
}

}  // namespace
