// Attention by maps with few nonzero weights: what has no weight is skipped, forward and backward (docs/math.md, 4.7).
// To few keys it goes the way of attention_lanes.h.
//
// A thread takes one head, or some queries of one, at a time. Scores of a block of queries are formed in its cache, the
// support of each row is found, and only the values with weight are read. What the backward pass needs is the support, a
// list of keys and weights; of a row whose list would be long only the threshold is kept, and its weights are computed
// again from the scores.

#include <atomic>

#include "attention_lanes.h"

namespace {

// Rows in a block: their scores stay in the cache, and are enough to make use of each packed key.
INLINE int64_t block_of(int64_t n) {
    return std::max<int64_t>(2 * tall, std::min<int64_t>(16 * tall, 65536 / padded(n) / tall * tall));
}

// The keys of a head, packed and scaled.
static void pack_keys(const Attention& c, int64_t h, Workspace& w) {
    if (w.keys_of != h) pack(c.k + h * c.n * c.e, c.n, c.e, c.scale, fitted(w.keys, padded(c.n) * c.e));
    w.keys_of = h;
}

// Scores of the queries first to last of a head, with mask and bias; rows are padded(n) apart.
static void score(const Attention& c, int64_t h, int64_t first, int64_t last, Workspace& w) {
    const int64_t step = padded(c.n), seen = c.seen(last - 1);
    float* scores = fitted(w.scores, block_of(c.n) * step);
    inner_products(c.q + (h * c.rows + first) * c.e, last - first, c.e, w.keys.data(), c.n, seen, scores, step);
    const float hidden = -std::numeric_limits<float>::infinity();
    for (int64_t i = first; i < last; ++i) {
        float* x = scores + (i - first) * step;
        const int64_t keys = c.seen(i);
        if (c.bias.count > 0) {
            const float* more = c.bias.row(h, i, c.n);
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

// A share of the memory for supports, taken from all of it a chunk at a time.
struct Store {
    std::atomic<int64_t>& used;
    int64_t room, next, end;
    int64_t take(int64_t n) {
        if (next + n > end) {
            const int64_t chunk = std::max<int64_t>(n, 8192), from = used.fetch_add(chunk);
            if (from + chunk > room) return -1;
            next = from;
            end = from + chunk;
        }
        next += n;
        return next - n;
    }
};

// Whether scores and contexts of the queries first to last of a head cannot overflow.
static bool in_range(const Attention& c, int64_t h, int64_t first, int64_t last, Workspace& w) {
    if (w.range_of != h) {
        w.largest_key = largest_absolute(c.k + h * c.n * c.e, c.n * c.e);
        if (!(double(largest_absolute(c.v + h * c.n * c.d, c.n * c.d)) * double(c.n) < range)) return false;
    }
    w.range_of = h;
    const double queries = largest_absolute(c.q + (h * c.rows + first) * c.e, (last - first) * c.e);
    const double most = queries * w.largest_key * double(c.e) * std::max(1.0, std::abs(double(c.scale)));
    return most < (c.bias.count > 0 ? small : range);
}

// Contexts of the queries first to last of a head. False for a number that is not finite.
static bool forward_rows(const Attention& c, int64_t h, int64_t first, int64_t last, float* out, const Supports* kept,
                         Store& store, Workspace& w) {
    const float* v = c.v + h * c.n * c.d;
    pack_keys(c, h, w);
    const int64_t block = block_of(c.n), step = padded(c.n);
    const double alpha = c.alpha(h);
    const int64_t room = step + wide, group = c.n < lane_keys && alpha >= softest ? wide : 1;
    float *lists = fitted(w.list, group * room), *columns = fitted(w.slope, group * step);
    int32_t* places = fitted(w.place, group * room);
    Row supports[wide];
    for (int64_t a = first; a < last; a += block) {
        const int64_t b = std::min(a + block, last);
        score(c, h, a, b, w);
        for (int64_t i = a; i < b; ++i) {
            const float* x = w.scores.data() + (i - a) * step;
            const int64_t which = (i - a) % group;
            if (c.bias.count > 0 && !below_infinity(x, c.seen(i))) return false;
            if (group == 1)
                supports[0] = support_of(x, c.seen(i), alpha, lists, places);
            else if (which == 0)
                lane_supports(x, std::min(group, b - i), c.n, alpha, lists, places, columns, supports);
            const Row& support = supports[which];
            const float* list = lists + which * room;
            const int32_t* place = places + which * room;
            if (support.count < 0) return false;
            const int64_t row = h * c.rows + i, found = support.count;
            gather(v, c.d, place, list, found, out + row * c.d);
            if (kept == nullptr) continue;
            kept->count[row] = static_cast<int32_t>(found);
            std::memcpy(kept->edge + 3 * row, &support.edge, sizeof(Edge));
            const int64_t at = 2 * found > c.n ? -1 : store.take(found);
            kept->start[row] = at;
            if (at < 0) continue;
            std::memcpy(kept->place + at, place, found * sizeof(int32_t));
            std::memcpy(kept->weight + at, list, found * sizeof(float));
        }
    }
    return true;
}

// Gradients of the rows a to b from all of their weights, which lie padded(n) apart.
static void backward_dense(const Attention& c, int64_t h, int64_t a, int64_t b, Gradients& g, Workspace& w) {
    const int64_t step = padded(c.n), row = h * c.rows + a, seen = c.seen(b - 1), rows = b - a;
    const float *grad = g.of_context + row * c.d, *weights = w.weights.data();
    float *slope = fitted(w.scores, block_of(c.n) * step), *hold = fitted(w.hold, step);
    if (w.values_of != h) pack(c.v + h * c.n * c.d, c.n, c.d, 1.0f, fitted(w.values, padded(c.n) * c.d));
    w.values_of = h;
    inner_products(grad, rows, c.d, w.values.data(), c.n, seen, slope, step);
    for (int64_t i = 0; i < rows; ++i) {
        float* s = slope + i * step;
        g.alpha += slopes(weights + i * step, s, seen, c.alpha(h), c.scale, g.learned, hold, s);
    }
    product({slope, step, 1}, rows, c.k + h * c.n * c.e, c.e, c.e, seen, g.q + row * c.e, c.e, false);
    product({slope, 1, step}, seen, c.q + row * c.e, c.e, c.e, rows, g.k, c.e, true);
    product({weights, 1, step}, seen, grad, c.d, c.d, rows, g.v, c.d, true);
}

// Gradients of the queries first to last of a head; those in keys and values are the sums over these queries.
static void backward_rows(const Attention& c, int64_t h, int64_t first, int64_t last, const KnownSupports& kept,
                          Gradients& g, Workspace& w) {
    const int64_t block = block_of(c.n), step = padded(c.n);
    const bool whole = c.e % wide == 0 && c.d % wide == 0;
    for (int64_t a = first; a < last; a += block) {
        const int64_t b = std::min(a + block, last), row = h * c.rows + a;
        int64_t entries = 0, missing = 0;
        for (int64_t i = row; i < row + b - a; ++i) {
            entries += kept.count[i];
            missing += kept.start[i] < 0;
        }
        if (missing > 0) {
            pack_keys(c, h, w);
            score(c, h, a, b, w);
        }
        const bool dense = whole && missing > 0 && 2 * entries > (b - a) * c.n;
        float *weights = fitted(w.weights, (dense ? block : 1) * step), *list = fitted(w.list, step + wide);
        int32_t* place = fitted(w.place, step + wide);
        for (int64_t i = 0; i < b - a; ++i) {
            const int64_t at = kept.start[row + i], seen = c.seen(a + i);
            float* p = weights + (dense ? i * step : 0);
            int64_t count = kept.count[row + i];
            if (at < 0) {
                Edge edge;
                std::memcpy(&edge, kept.edge + 3 * (row + i), sizeof(edge));
                weights_at(w.scores.data() + i * step, seen, c.alpha(h), edge, p);
                std::fill(p + seen, p + step, 0.0f);
            } else if (dense) {
                std::fill(p, p + step, 0.0f);
                for (int64_t j = 0; j < count; ++j) p[kept.place[at + j]] = kept.weight[at + j];
            }
            if (dense) continue;
            if (at < 0) {
                count = above(p, seen, 0.0f, place);
                for (int64_t j = 0; j < count; ++j) list[j] = p[place[j]];
                backward_row(c, h, a + i, place, list, count, g, w);
            } else {
                backward_row(c, h, a + i, kept.place + at, kept.weight + at, count, g, w);
            }
        }
        if (dense) backward_dense(c, h, a, b, g, w);
    }
}

}  // namespace

// Contexts, and the supports of all rows if there is room for any (`kept`). Returns 1 if a number is not finite, or if
// finite numbers are so large that sums of them need not be; else 0.
EXPORT int regard_attend_forward(const float* q, const float* k, const float* v, const uint8_t* mask,
                                 const int64_t* mask_of, const float* bias, const int64_t* bias_of, const double* alpha,
                                 float* out, int64_t* start, int32_t* count, double* edge, int32_t* place,
                                 float* weight, int64_t heads, int64_t rows, int64_t n, int64_t e, int64_t d,
                                 int64_t masks, int64_t mask_rows, int64_t biases, int64_t bias_rows, int64_t alphas,
                                 int64_t diagonal, int64_t kept, int64_t room, double scale, int threads) {
    const Pairs<uint8_t> hidden = {mask, mask_of, masks, mask_rows};
    const Pairs<float> added = {bias, bias_of, biases, bias_rows};
    const float factor = static_cast<float>(scale);
    const Attention c = {q, k, v, hidden, added, alpha, heads, rows, n, e, d, alphas > 1, diagonal, factor};
    const Supports supports = {start, count, place, weight, edge};
    // Whole heads where there are many, else a few blocks, so that no thread waits long for another.
    const bool few = in_lanes(c, kept ? room : -1);
    const int64_t block = few ? short_block : block_of(n), piece = heads >= 32 ? rows : (127 + block) / block * block;
    const int64_t pieces = (rows + piece - 1) / piece;
    const int parts = threads_for(heads * rows * n, threads);
    std::atomic<int64_t> next(0), used(0);
    std::atomic<int> failed(0);
    PARALLEL(num_threads(parts))
    for (int part = 0; part < parts; ++part) {
        Workspace& w = workspace();
        Store store = {used, room, 0, 0};
        w.forget();
        for (int64_t t; failed == 0 && (t = next.fetch_add(1)) < heads * pieces;) {
            const int64_t h = t / pieces, a = t % pieces * piece, b = std::min(a + piece, rows);
            bool finite = in_range(c, h, a, b, w);
            if (finite && few)
                finite = forward_lanes(c, h, a, b, out, kept ? &supports : nullptr, w);
            else if (finite)
                finite = forward_rows(c, h, a, b, out, kept ? &supports : nullptr, store, w);
            if (!finite) failed = 1;
        }
        w.release();
    }
    return failed;
}

// Gradients in queries, keys and values, and in the alphas if `learned`; those in keys, values and alphas in `parts`
// that are still to be added: each is that of some of the queries.
EXPORT int regard_attend_backward(const float* q, const float* k, const float* v, const float* grad,
                                  const uint8_t* mask, const int64_t* mask_of, const float* bias,
                                  const int64_t* bias_of, const double* alpha, const int64_t* start,
                                  const int32_t* count, const double* edge, const int32_t* place, const float* weight,
                                  float* dq, float* dk, float* dv, double* dalpha, int64_t heads, int64_t rows,
                                  int64_t n, int64_t e, int64_t d, int64_t masks, int64_t mask_rows, int64_t biases,
                                  int64_t bias_rows, int64_t alphas, int64_t diagonal, int64_t room, int64_t parts,
                                  int64_t learned, double scale, int threads) {
    const Pairs<uint8_t> hidden = {mask, mask_of, masks, mask_rows};
    const Pairs<float> added = {bias, bias_of, biases, bias_rows};
    const float factor = static_cast<float>(scale);
    const Attention c = {q, k, v, hidden, added, alpha, heads, rows, n, e, d, alphas > 1, diagonal, factor};
    const KnownSupports supports = {start, count, place, weight, edge};
    const int workers = threads_for(heads * rows * n, threads);
    const bool few = in_lanes(c, room);
    std::atomic<int64_t> next(0);
    PARALLEL(num_threads(workers))
    for (int worker = 0; worker < workers; ++worker) {
        Workspace& w = workspace();
        w.forget();
        for (int64_t t; (t = next.fetch_add(1)) < heads * parts;) {
            const int64_t h = t / parts, part = t % parts, at = part * heads + h;
            Gradients g = {grad, dq, dk + at * n * e, dv + at * n * d, 0.0, learned != 0};
            std::memset(g.k, 0, n * e * sizeof(float));
            std::memset(g.v, 0, n * d * sizeof(float));
            const int64_t first = rows * part / parts / short_block * short_block;
            const int64_t last = part + 1 == parts ? rows : rows * (part + 1) / parts / short_block * short_block;
            if (few)
                backward_lanes(c, h, first, last, supports, g, w);
            else
                backward_rows(c, h, first, last, supports, g, w);
            if (learned) dalpha[at] = g.alpha;
        }
        w.release();
    }
    return 0;
}
