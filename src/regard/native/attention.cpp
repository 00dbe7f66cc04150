// Attention by maps with few nonzero weights: what has no weight is skipped, forward and backward (docs/math.md, 4.7).
// Few keys, rows that turn out to be dense, and softmax go the way of attention_lanes.h.
//
// A thread takes one head, or some queries of one, at a time. Scores of a block of queries are formed in its cache, the
// support of each row is found, and only the values with weight are read. What the backward pass needs is the support, a
// list of keys and weights; of a row whose list would be long only the threshold is kept, and its weights are computed
// again from the scores.

#include "attention_lanes.h"

namespace {

// Rows in a block: their scores stay in the cache, and are enough to make use of each packed key.
INLINE int64_t block_of(int64_t n) {
    return std::max<int64_t>(2 * tall, std::min<int64_t>(16 * tall, 65536 / padded(n) / tall * tall));
}

// The keys of a head, packed and scaled.
static void pack_keys(const Attention& c, int64_t h, Workspace& w) {
    if (w.keys_of != h) pack(c.k.of(h), c.k.step, c.n, c.e, c.scale, fitted(w.keys, padded(c.n) * c.e));
    w.keys_of = h;
}

// Scores of the queries first to last of a head, with mask and bias; rows are padded(n) apart.
static void score(const Attention& c, int64_t h, int64_t first, int64_t last, Workspace& w) {
    const int64_t step = padded(c.n), seen = c.seen(last - 1), rows = last - first;
    float* scores = fitted(w.scores, rows * step);
    inner_products(c.q.row(h, first), c.q.step, rows, c.e, w.keys.data(), c.n, seen, scores, step);
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

// Whether scores and contexts of the queries first to last of a head cannot overflow.
static bool in_range(const Attention& c, int64_t h, int64_t first, int64_t last, Workspace& w) {
    if (w.range_of != h) {
        w.largest_key = largest_absolute(c.k.of(h), c.k.step, c.n, c.e);
        if (!(double(largest_absolute(c.v.of(h), c.v.step, c.n, c.d)) * double(c.n) < range)) return false;
    }
    w.range_of = h;
    const double queries = largest_absolute(c.q.row(h, first), c.q.step, last - first, c.e);
    const double most = queries * w.largest_key * double(c.e) * std::max(1.0, std::abs(double(c.scale)));
    return most < (c.bias.count > 0 ? small : range);
}

// Contexts of a block of queries by lists; `entries` counts the weights that are not zero. False for a number that is
// not finite.
static bool forward_lists(const Attention& c, int64_t h, int64_t a, int64_t b, const Result& out, const Supports* kept,
                          Store& store, Workspace& w, int64_t& entries) {
    const float* v = c.v.of(h);
    const int64_t step = padded(c.n), room = step + wide;
    const double alpha = c.alpha(h);
    const int64_t group = c.n < lane_keys && alpha >= softest ? wide : 1;
    float *lists = fitted(w.list, group * room), *columns = fitted(w.slope, group * step);
    int32_t* places = fitted(w.place, group * room);
    Row supports[wide];
    pack_keys(c, h, w);
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
static bool forward_rows(const Attention& c, int64_t h, int64_t first, int64_t last, const Result& out,
                         const Supports* kept, Store& store, Workspace& w) {
    // Tiles of smaller registers are slower than reading the values with weight one by one.
    const bool may_be_dense = across == 4 && c.n < lane_keys && c.in_registers() && c.alpha(h) >= softest;
    const int64_t block = block_of(c.n);
    bool dense = false;
    for (int64_t a = first, b; a < last; a = b) {
        b = std::min(a + (a == first && may_be_dense ? wide : dense ? short_block : block), last);
        int64_t entries = 0;
        const bool finite = dense ? forward_lanes(c, h, a, b, out, kept, store, w, entries)
                                  : forward_lists(c, h, a, b, out, kept, store, w, entries);
        if (!finite) return false;
        dense = may_be_dense && 3 * entries > (b - a) * c.n;
    }
    return true;
}

// Gradients of the queries first to last of a head; those in keys and values are the sums over these queries.
static void backward_rows(const Attention& c, int64_t h, int64_t first, int64_t last, const KnownSupports& kept,
                          Gradients& g, Workspace& w) {
    const int64_t step = padded(c.n);
    for (int64_t a = first; a < last; a += short_block) {
        const int64_t b = std::min(a + short_block, last), row = h * c.rows + a;
        int64_t entries = 0, missing = 0;
        for (int64_t i = row; i < row + b - a; ++i) {
            entries += kept.count[i];
            missing += kept.start[i] < 0;
        }
        if (missing > 0 && c.in_registers() && (c.n <= short_keys || 2 * entries > (b - a) * c.n)) {
            backward_lanes(c, h, a, b - a, kept, g, w);
            continue;
        }
        if (missing > 0) {
            pack_keys(c, h, w);
            score(c, h, a, b, w);
        }
        float *weights = fitted(w.weights, step), *list = fitted(w.list, step + wide);
        int32_t* place = fitted(w.place, step + wide);
        for (int64_t i = 0; i < b - a; ++i) {
            const int64_t at = kept.start[row + i], seen = c.seen(a + i);
            if (at >= 0) {
                known_places(kept, row + i, c.n, place);
                backward_row(c, h, a + i, place, kept.weight + at, kept.count[row + i], g, w);
                continue;
            }
            const float* edge = kept.edge + edge_numbers * (row + i);
            const Edge found = {edge[0], double(edge[1]) + double(edge[2]), edge[3]};
            weights_at(w.scores.data() + i * step, seen, c.alpha(h), found, weights);
            const int64_t count = above(weights, seen, 0.0f, place);
            for (int64_t j = 0; j < count; ++j) list[j] = weights[place[j]];
            backward_row(c, h, a + i, place, list, count, g, w);
        }
    }
}

static void clear(float* x, int64_t step, int64_t n, int64_t width) {
    if (step == width) width *= n, n = 1;
    for (int64_t i = 0; i < n; ++i) std::memset(x + i * step, 0, width * sizeof(float));
}

}  // namespace

#define GIVEN(x) {x, inner, x##_outer, x##_inner, x##_step}

// Contexts, and the supports of all rows if there is room for any (`kept`); `used` gets the entries of `place` and
// `weight` that were taken. Returns 1 if a number is not finite, or if finite numbers are so large that sums of them
// need not be; else 0.
EXPORT int regard_attend_forward(const float* q, int64_t q_outer, int64_t q_inner, int64_t q_step, const float* k,
                                 int64_t k_outer, int64_t k_inner, int64_t k_step, const float* v, int64_t v_outer,
                                 int64_t v_inner, int64_t v_step, const uint8_t* mask, const int64_t* mask_of,
                                 const float* bias, const int64_t* bias_of, const double* alpha, float* out,
                                 int64_t out_outer, int64_t out_inner, int64_t out_step, int32_t* start, int32_t* count,
                                 float* edge, int16_t* place, float* weight, int64_t* used, int64_t inner,
                                 int64_t heads, int64_t rows, int64_t n, int64_t e, int64_t d, int64_t masks,
                                 int64_t mask_rows, int64_t biases, int64_t bias_rows, int64_t alphas, int64_t diagonal,
                                 int64_t kept, int64_t room, int64_t units, double scale, int threads) {
    const Pairs<uint8_t> hidden = {mask, mask_of, masks, mask_rows};
    const Pairs<float> added = {bias, bias_of, biases, bias_rows};
    const float factor = static_cast<float>(scale);
    const Attention c = {GIVEN(q), GIVEN(k), GIVEN(v), hidden, added, alpha, heads, rows, n, e, d, alphas > 1,
                         diagonal, factor};
    const Result context = GIVEN(out);
    const Supports supports = {start, count, place, weight, edge};
    // Whole heads where there are many, else a few blocks, so that no thread waits long for another.
    const bool lanes = in_lanes(c);
    const int64_t block = lanes ? short_block : block_of(n), piece = heads >= 32 ? rows : (127 + block) / block * block;
    const int64_t pieces = (rows + piece - 1) / piece;
    const int parts = threads_for(heads * rows * n, threads);
    std::atomic<int64_t> next(0), taken(0);
    std::atomic<int> failed(0);
    PARALLEL(num_threads(parts))
    for (int part = 0; part < parts; ++part) {
        Workspace& w = workspace();
        Store store = {taken, room, 0, 0};
        w.forget();
        for (int64_t t; failed == 0 && (t = next.fetch_add(1)) < heads * pieces;) {
            const int64_t h = t / pieces, a = t % pieces * piece, b = std::min(a + piece, rows);
            const Supports* keep = kept ? &supports : nullptr;
            int64_t entries = 0;
            bool finite = in_range(c, h, a, b, w);
            if (finite && lanes)
                finite = forward_lanes(c, h, a, b, context, keep, store, w, entries);
            else if (finite)
                finite = forward_rows(c, h, a, b, context, keep, store, w);
            if (!finite) failed = 1;
        }
        w.release();
    }
    *used = std::min<int64_t>(taken, room);
    return failed;
}

// Gradients in queries, keys and values, in the alphas if `learned`, and in the biases if there are `groups` of heads to
// sum them over. Those in keys, values and alphas are in `parts` that are still to be added: each is that of some of the
// queries; those in biases in as many as `groups`, or groups times parts where all queries share a row.
EXPORT int regard_attend_backward(
    const float* q, int64_t q_outer, int64_t q_inner, int64_t q_step, const float* k, int64_t k_outer, int64_t k_inner,
    int64_t k_step, const float* v, int64_t v_outer, int64_t v_inner, int64_t v_step, const float* grad,
    int64_t grad_outer, int64_t grad_inner, int64_t grad_step, const uint8_t* mask, const int64_t* mask_of,
    const float* bias, const int64_t* bias_of, const double* alpha, const int32_t* start, const int32_t* count,
    const float* edge, const int16_t* place, const float* weight, float* dq, int64_t dq_outer, int64_t dq_inner,
    int64_t dq_step, float* dk, int64_t dk_outer, int64_t dk_inner, int64_t dk_step, float* dv, int64_t dv_outer,
    int64_t dv_inner, int64_t dv_step, double* dalpha, float* dbias, int64_t inner, int64_t heads, int64_t rows,
    int64_t n, int64_t e, int64_t d, int64_t masks, int64_t mask_rows, int64_t biases, int64_t bias_rows,
    int64_t alphas, int64_t diagonal, int64_t room, int64_t units, int64_t parts, int64_t learned, int64_t sums,
    int64_t groups, double scale, int threads) {
    const Pairs<uint8_t> hidden = {mask, mask_of, masks, mask_rows};
    const Pairs<float> added = {bias, bias_of, biases, bias_rows};
    const float factor = static_cast<float>(scale);
    const Attention c = {GIVEN(q), GIVEN(k), GIVEN(v), hidden, added, alpha, heads, rows, n, e, d, alphas > 1,
                         diagonal, factor};
    const KnownSupports supports = {start, count, place, weight, edge};
    const Given given = GIVEN(grad);
    const Result in_q = GIVEN(dq), in_k = GIVEN(dk), in_v = GIVEN(dv);
    const int workers = threads_for(heads * rows * n, threads);
    // Heads that share a bias are summed in one order: a task has some of them one after the other.
    const int64_t matrices = sums > 0 ? biases : heads, share = sums > 0 ? groups : 1;
    std::atomic<int64_t> next(0);
    PARALLEL(num_threads(workers))
    for (int worker = 0; worker < workers; ++worker) {
        Workspace& w = workspace();
        w.forget();
        for (int64_t t; (t = next.fetch_add(1)) < matrices * share * parts;) {
            const int64_t matrix = t / parts / share, group = t / parts % share, part = t % parts;
            const int64_t first = rows * part / parts / short_block * short_block;
            const int64_t last = part + 1 == parts ? rows : rows * (part + 1) / parts / short_block * short_block;
            float* sum = nullptr;
            if (sums > 0) {
                const int64_t slot = bias_rows > 1 ? group : group * parts + part;
                sum = dbias + (slot * biases + matrix) * bias_rows * n;
                const bool shared = bias_rows == 1;
                clear(shared ? sum : sum + first * n, n, shared ? 1 : last - first, n);
            }
            for (int64_t h = sums > 0 ? 0 : matrix, number = 0; h < (sums > 0 ? heads : matrix + 1); ++h) {
                if (sums > 0 && (bias_of[h] != matrix || number++ % share != group)) continue;
                const int64_t at = part * heads + h;
                Gradients g = {given, in_q, in_k.of(at), in_v.of(at), sum, in_k.step, in_v.step, bias_rows, 0.0,
                               learned != 0};
                clear(g.k, g.k_step, n, e);
                clear(g.v, g.v_step, n, d);
                backward_rows(c, h, first, last, supports, g, w);
                if (learned) dalpha[at] = g.alpha;
            }
        }
        w.release();
    }
    return 0;
}
