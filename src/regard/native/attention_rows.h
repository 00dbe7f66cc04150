// Attention of some queries of a head by the lists of keys that have weight, forward and backward (docs/math.md, 4.7).
//
// Scores of a block of queries are formed in the cache, the support of each row is found, and only the values with weight
// are read. What the backward pass needs is the support, a list of keys and weights; of a row whose list would be long
// only the threshold is kept, and its weights are computed again from the scores.
#pragma once

#include "attention_lanes.h"

namespace {

// Rows in a block: their scores stay in the cache, and are enough to make use of each packed key.
template <typename C>
INLINE int64_t block_of(int64_t n) {
    constexpr int64_t numbers = 262144 / sizeof(C);
    return std::max<int64_t>(2 * tall, std::min<int64_t>(16 * tall, numbers / padded(n) / tall * tall));
}

// The keys of a head, packed and scaled.
template <typename C>
static void pack_keys(const AttentionOf<C>& c, int64_t h, WorkspaceOf<C>& w) {
    if (w.keys_of != h) pack(c.k.of(h), c.k.step, c.n, c.e, c.scale, fitted(w.keys, padded(c.n) * c.e));
    w.keys_of = h;
}

// Scores of the queries first to last of a head, with mask and bias; rows are padded(n) apart.
template <typename C>
static void score(const AttentionOf<C>& c, int64_t h, int64_t first, int64_t last, WorkspaceOf<C>& w) {
    const int64_t step = padded(c.n), seen = c.seen(last - 1), rows = last - first;
    C* scores = fitted(w.scores, rows * step);
    inner_products(c.q.row(h, first), c.q.step, rows, c.e, w.keys.data(), c.n, seen, scores, step);
    const C hidden = -std::numeric_limits<C>::infinity();
    for (int64_t i = first; i < last; ++i) {
        C* x = scores + (i - first) * step;
        const int64_t keys = c.seen(i);
        if (c.bias.count > 0) {
            const C* more = c.bias.row(h, i, c.n);
            SIMD()
            for (int64_t j = 0; j < keys; ++j) x[j] += more[j];
        }
        if (c.mask.count > 0) {
            const uint8_t* takes_part = c.mask.row(h, i, c.n);
            SIMD()
            for (int64_t j = 0; j < keys; ++j) x[j] = takes_part[j] ? x[j] : hidden;
        }
        std::fill(x + keys, x + (c.n < lane_keys ? step : padded(keys)), hidden);
    }
}

// Whether scores and contexts of the queries first to last of a head cannot overflow.
template <typename C>
static bool in_range(const AttentionOf<C>& c, int64_t h, int64_t first, int64_t last, WorkspaceOf<C>& w) {
    if (w.range_of != h) {
        w.largest_key = largest_absolute(c.k.of(h), c.k.step, c.n, c.e);
        if (!(double(largest_absolute(c.v.of(h), c.v.step, c.n, c.d)) * double(c.n) < range<C>)) return false;
    }
    w.range_of = h;
    const double queries = largest_absolute(c.q.row(h, first), c.q.step, last - first, c.e);
    const double most = queries * w.largest_key * double(c.e) * std::max(1.0, std::abs(double(c.scale)));
    return most < (c.bias.count > 0 ? small<C> : range<C>);
}

// Contexts of a block of queries by lists; `entries` counts the weights that are not zero. False for a number that is
// not finite.
template <typename C>
static bool forward_lists(const AttentionOf<C>& c, int64_t h, int64_t a, int64_t b, const Heads<C>& out,
                          const KeptSupports<C>* kept, Store& store, WorkspaceOf<C>& w, int64_t& entries) {
    const C* v = c.v.of(h);
    const int64_t step = padded(c.n), room = step + wide;
    const double alpha = c.alpha(h);
    const int64_t group = sizeof(C) == 4 && c.n < lane_keys && alpha >= softest ? wide : 1;
    C *lists = fitted(w.list, group * room), *columns = fitted(w.slope, group * step);
    int32_t* places = fitted(w.place, group * room);
    Row supports[wide];
    pack_keys(c, h, w);
    score(c, h, a, b, w);
    for (int64_t i = a; i < b; ++i) {
        const C* x = w.scores.data() + (i - a) * step;
        const int64_t which = (i - a) % group;
        if (c.bias.count > 0 && !below_infinity(x, c.seen(i))) return false;
        if (group == 1)
            supports[0] = support_of(x, c.seen(i), alpha, lists, places);
        else if constexpr (sizeof(C) == 4)
            if (which == 0) lane_supports(x, std::min(group, b - i), c.n, alpha, lists, places, columns, supports);
        const Row& support = supports[which];
        const C* list = lists + which * room;
        const int32_t* place = places + which * room;
        if (support.count < 0) return false;
        const int64_t row = h * c.rows + i, found = support.count;
        entries += found;
        gather(v, c.v.step, c.d, place, list, found, out.row(h, i));
        if (kept == nullptr) continue;
        keep_edge(*kept, row, found, support.edge);
        const int64_t at = 5 * found > c.n ? -1 : store.take(found);  // a longer list takes more memory than a query
        if (at >= 0) keep_list(*kept, row, at, c.n, place, list, found);
    }
    return true;
}

// Contexts of the queries first to last of a head. After some of them it is known whether rows are dense.
template <typename C>
static bool forward_rows(const AttentionOf<C>& c, int64_t h, int64_t first, int64_t last, const Heads<C>& out,
                         const KeptSupports<C>* kept, Store& store, WorkspaceOf<C>& w) {
    const bool may_be_dense = sizeof(C) == 4 && c.n < lane_keys && c.in_registers() && c.alpha(h) >= softest;
    const int64_t block = block_of<C>(c.n);
    bool dense = false;
    for (int64_t a = first, b; a < last; a = b) {
        b = std::min(a + (a == first && may_be_dense ? wide : dense ? short_block : block), last);
        int64_t entries = 0;
        bool finite = true;
        if constexpr (sizeof(C) == 4)
            if (dense) finite = forward_lanes(c, h, a, b, out, kept, store, w, entries);
        if (!dense) finite = forward_lists(c, h, a, b, out, kept, store, w, entries);
        if (!finite) return false;
        dense = may_be_dense && 3 * entries > (b - a) * c.n;
    }
    return true;
}

// Gradients of the queries first to last of a head; those in keys and values are the sums over these queries.
template <typename C>
static void backward_rows(const AttentionOf<C>& c, int64_t h, int64_t first, int64_t last, const ReadSupports<C>& kept,
                          GradientsOf<C>& g, WorkspaceOf<C>& w) {
    const int64_t step = padded(c.n);
    for (int64_t a = first; a < last; a += short_block) {
        const int64_t b = std::min(a + short_block, last), row = h * c.rows + a;
        int64_t entries = 0, missing = 0;
        for (int64_t i = row; i < row + b - a; ++i) {
            entries += kept.count[i];
            missing += kept.start[i] < 0;
        }
        if constexpr (sizeof(C) == 4)
            if (missing > 0 && c.in_registers() && (c.n <= short_keys || 2 * entries > (b - a) * c.n)) {
                backward_lanes(c, h, a, b - a, kept, g, w);
                continue;
            }
        if (missing > 0) {
            pack_keys(c, h, w);
            score(c, h, a, b, w);
        }
        C *weights = fitted(w.weights, step), *list = fitted(w.list, step + wide);
        int32_t* place = fitted(w.place, step + wide);
        for (int64_t i = 0; i < b - a; ++i) {
            const int64_t at = kept.start[row + i], seen = c.seen(a + i);
            if (at >= 0) {
                known_places(kept, row + i, c.n, place);
                backward_row(c, h, a + i, place, kept.weight + at, kept.count[row + i], g, w);
                continue;
            }
            const C* edge = kept.edge + edge_numbers * (row + i);
            const Edge found = {edge[0], double(edge[1]) + double(edge[2]), edge[3]};
            weights_at(w.scores.data() + i * step, seen, c.alpha(h), found, weights);
            const int64_t count = above(weights, seen, C(0), place);
            for (int64_t j = 0; j < count; ++j) list[j] = weights[place[j]];
            backward_row(c, h, a + i, place, list, count, g, w);
        }
    }
}

}  // namespace
