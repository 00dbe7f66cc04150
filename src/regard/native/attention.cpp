// Attention by maps with few nonzero weights: what has no weight is skipped, forward and backward (docs/math.md, 4.7).
// Few keys, rows that turn out to be dense, and softmax go the way of attention_lanes.h.
//
// A thread takes one head, or some queries of one, at a time.

#include "attention_rows.h"

namespace {

template <typename C>
static void clear(C* x, int64_t step, int64_t n, int64_t width) {
    if (step == width) width *= n, n = 1;
    for (int64_t i = 0; i < n; ++i) std::memset(x + i * step, 0, width * sizeof(C));
}

// What is passed: queries, keys, values, and for the backward pass the gradient in the contexts.
template <typename S>
struct Stored {
    Heads<const S> q, k, v, grad;
};

// The call for the queries first to last of a head, with numbers that are widened where they are stored as others.
template <typename S, typename C>
static AttentionOf<C> widened(const AttentionOf<C>& c, const Stored<S>& x, int64_t h, int64_t first, int64_t last,
                              WorkspaceOf<C>& w) {
    AttentionOf<C> own = c;
    if constexpr (std::is_same_v<S, C>) {
        own.q = x.q, own.k = x.k, own.v = x.v;
    } else {
        if (w.wide_of != h) {
            widen(x.k.of(h), x.k.step, c.n, c.e, fitted(w.k, c.n * c.e));
            widen(x.v.of(h), x.v.step, c.n, c.d, fitted(w.v, c.n * c.d));
        }
        w.wide_of = h;
        widen(x.q.row(h, first), x.q.step, last - first, c.e, fitted(w.q, (last - first) * c.e));
        own.q = {w.q.data(), 1, 0, 0, c.e, first};
        own.k = {w.k.data(), 1, 0, 0, c.e};
        own.v = {w.v.data(), 1, 0, 0, c.d};
    }
    return own;
}

// Where rows of results are computed: where they belong, or in `room` if they are stored as other numbers.
template <typename S, typename C>
static Heads<C> computed_in(const Heads<S>& out, int64_t first, int64_t last, int64_t width, std::vector<C>& room) {
    if constexpr (std::is_same_v<S, C>)
        return out;
    else
        return {fitted(room, (last - first) * width), 1, 0, 0, width, first};
}

template <typename S, typename C>
static void written(const Heads<C>& x, const Heads<S>& out, int64_t h, int64_t first, int64_t last, int64_t width) {
    if constexpr (!std::is_same_v<S, C>) narrow(x.at, x.step, last - first, width, out.row(h, first), out.step);
}

template <typename S, typename C>
static int forward(const AttentionOf<C>& call, const Stored<S>& x, const Heads<S>& out, const KeptSupports<C>* kept,
                   int64_t room, int64_t* used, int threads) {
    // Whole heads where there are many, else a few blocks, so that no thread waits long for another.
    const int64_t heads = call.heads, rows = call.rows;
    bool lanes = false;
    if constexpr (sizeof(C) == 4) lanes = in_lanes(call);
    const int64_t block = lanes ? short_block : block_of<C>(call.n);
    const int64_t piece = heads >= 32 ? rows : (127 + block) / block * block, pieces = (rows + piece - 1) / piece;
    const int parts = threads_for(heads * rows * call.n, threads);
    std::atomic<int64_t> next(0), taken(0);
    std::atomic<int> failed(0);
    PARALLEL(num_threads(parts))
    for (int part = 0; part < parts; ++part) {
        WorkspaceOf<C>& w = workspace<C>();
        Store store = {taken, room, 0, 0};
        w.forget();
        for (int64_t t; failed == 0 && (t = next.fetch_add(1)) < heads * pieces;) {
            const int64_t h = t / pieces, a = t % pieces * piece, b = std::min(a + piece, rows);
            const AttentionOf<C> c = widened(call, x, h, a, b, w);
            const Heads<C> contexts = computed_in(out, a, b, c.d, w.out);
            bool finite = in_range(c, h, a, b, w);
            if constexpr (sizeof(C) == 4) {
                int64_t entries = 0;
                if (finite && lanes) finite = forward_lanes(c, h, a, b, contexts, kept, store, w, entries);
            }
            if (finite && !lanes) finite = forward_rows(c, h, a, b, contexts, kept, store, w);
            if (!finite)
                failed = 1;
            else
                written(contexts, out, h, a, b, c.d);
        }
        w.release();
    }
    *used = std::min<int64_t>(taken, room);
    return failed;
}

// Sums of `parts` of gradients in n rows of `width` numbers, which lie one after the other for all heads.
template <typename S, typename C>
static void add_parts(C* x, int64_t parts, const Heads<S>& out, int64_t heads, int64_t n, int64_t width, int threads) {
    const int64_t numbers = n * width;
    const int workers = threads_for(heads * numbers * parts, threads);
    PARALLEL(num_threads(workers))
    for (int64_t h = 0; h < heads; ++h) {
        C* sum = x + h * numbers;
        for (int64_t part = 1; part < parts; ++part) {
            const C* more = x + (part * heads + h) * numbers;
            SIMD()
            for (int64_t i = 0; i < numbers; ++i) sum[i] += more[i];
        }
        if constexpr (std::is_same_v<S, C>)
            for (int64_t i = 0; i < n; ++i) std::memcpy(out.row(h, i), sum + i * width, width * sizeof(C));
        else
            narrow(sum, width, n, width, out.of(h), out.step);
    }
}

// Where gradients go; those in keys and values in `parts`, if there are several, before they are added.
template <typename S, typename C>
struct Gradient {
    Heads<S> q, k, v;
    C *k_parts, *v_parts, *bias;
    double* alpha;
    int64_t parts, sums, groups;
    bool learned;
};

template <typename S, typename C>
static void backward(const AttentionOf<C>& call, const Stored<S>& x, const ReadSupports<C>& supports,
                     const Gradient<S, C>& to, int threads) {
    const int64_t heads = call.heads, rows = call.rows, n = call.n, e = call.e, d = call.d, parts = to.parts;
    const int64_t bias_rows = call.bias.rows, biases = call.bias.count;
    const int workers = threads_for(heads * rows * n, threads);
    // Heads that share a bias are summed in one order: a task has some of them one after the other.
    const bool sums = to.sums > 0;
    const int64_t matrices = sums ? biases : heads, share = sums ? to.groups : 1;
    std::atomic<int64_t> next(0);
    PARALLEL(num_threads(workers))
    for (int worker = 0; worker < workers; ++worker) {
        WorkspaceOf<C>& w = workspace<C>();
        w.forget();
        for (int64_t t; (t = next.fetch_add(1)) < matrices * share * parts;) {
            const int64_t matrix = t / parts / share, group = t / parts % share, part = t % parts;
            const int64_t first = rows * part / parts / short_block * short_block;
            const int64_t last = part + 1 == parts ? rows : rows * (part + 1) / parts / short_block * short_block;
            C* sum = nullptr;
            if (sums) {
                const int64_t slot = bias_rows > 1 ? group : group * parts + part;
                sum = to.bias + (slot * biases + matrix) * bias_rows * n;
                const bool shared = bias_rows == 1;
                clear(shared ? sum : sum + first * n, n, shared ? 1 : last - first, n);
            }
            for (int64_t h = sums ? 0 : matrix, number = 0; h < (sums ? heads : matrix + 1); ++h) {
                if (sums && (call.bias.of[h] != matrix || number++ % share != group)) continue;
                const int64_t at = part * heads + h;
                const AttentionOf<C> c = widened(call, x, h, first, last, w);
                Heads<const C> grad;
                if constexpr (std::is_same_v<S, C>) {
                    grad = x.grad;
                } else {
                    widen(x.grad.row(h, first), x.grad.step, last - first, d, fitted(w.grad, (last - first) * d));
                    grad = {w.grad.data(), 1, 0, 0, d, first};
                }
                const Heads<C> in_q = computed_in(to.q, first, last, e, w.out);
                Heads<C> in_k = {to.k_parts + (parts > 1 ? at * n * e : 0), 1, 0, 0, e};
                Heads<C> in_v = {to.v_parts + (parts > 1 ? at * n * d : 0), 1, 0, 0, d};
                if (parts == 1) in_k = computed_in(to.k, 0, n, e, w.dk), in_v = computed_in(to.v, 0, n, d, w.dv);
                GradientsOf<C> g = {grad, in_q, in_k.of(h), in_v.of(h), sum, in_k.step, in_v.step, bias_rows, 0.0,
                                    to.learned};
                clear(g.k, g.k_step, n, e);
                clear(g.v, g.v_step, n, d);
                backward_rows(c, h, first, last, supports, g, w);
                written(in_q, to.q, h, first, last, e);
                if (parts == 1) written(in_k, to.k, h, 0, n, e), written(in_v, to.v, h, 0, n, d);
                if (to.learned) to.alpha[at] = g.alpha;
            }
        }
        w.release();
    }
    if (parts > 1) {
        add_parts(to.k_parts, parts, to.k, heads, n, e, threads);
        add_parts(to.v_parts, parts, to.v, heads, n, d, threads);
    }
}

}  // namespace

#define GIVEN(x) {x, inner, x##_outer, x##_inner, x##_step}

// For numbers that are stored as T and computed in C.
//
// Forward: contexts, and the supports of all rows if there is room for any (`kept`); `used` gets the entries of `place`
// and `weight` that were taken. Returns 1 if a number is not finite, or if finite numbers are so large that sums of them
// need not be; else 0.
//
// Backward: gradients in queries, keys and values, in the alphas if `learned`, and in the biases if there are `groups` of
// heads to sum them over. Those in alphas are in `parts` that are still to be added: each is that of some of the
// queries; those in keys and values are added here, with room for `spare` parts, if there are several; those in biases
// in as many as `groups`, or groups times parts where all queries share a row.
#define ATTENTION(T, C, NAME)                                                                                        \
    EXPORT int regard_attend_forward_##NAME(                                                                         \
        const T* q, int64_t q_outer, int64_t q_inner, int64_t q_step, const T* k, int64_t k_outer, int64_t k_inner,  \
        int64_t k_step, const T* v, int64_t v_outer, int64_t v_inner, int64_t v_step, const uint8_t* mask,           \
        const int64_t* mask_of, const C* bias, const int64_t* bias_of, const double* alpha, T* out, int64_t out_outer,\
        int64_t out_inner, int64_t out_step, int32_t* start, int32_t* count, C* edge, int16_t* place, C* weight,     \
        int64_t* used, int64_t inner, int64_t heads, int64_t rows, int64_t n, int64_t e, int64_t d, int64_t masks,   \
        int64_t mask_rows, int64_t biases, int64_t bias_rows, int64_t alphas, int64_t diagonal, int64_t kept,        \
        int64_t room, int64_t units, double scale, int threads) {                                                    \
        const AttentionOf<C> call = {{}, {}, {}, {mask, mask_of, masks, mask_rows}, {bias, bias_of, biases, bias_rows},\
                                     alpha, heads, rows, n, e, d, alphas > 1, diagonal, static_cast<C>(scale)};      \
        const Stored<T> stored = {GIVEN(q), GIVEN(k), GIVEN(v), {}};                                                 \
        const KeptSupports<C> supports = {start, count, place, weight, edge};                                        \
        return forward<T, C>(call, stored, GIVEN(out), kept ? &supports : nullptr, room, used, threads);             \
    }                                                                                                                \
    EXPORT int regard_attend_backward_##NAME(                                                                        \
        const T* q, int64_t q_outer, int64_t q_inner, int64_t q_step, const T* k, int64_t k_outer, int64_t k_inner,  \
        int64_t k_step, const T* v, int64_t v_outer, int64_t v_inner, int64_t v_step, const T* grad,                 \
        int64_t grad_outer, int64_t grad_inner, int64_t grad_step, const uint8_t* mask, const int64_t* mask_of,      \
        const C* bias, const int64_t* bias_of, const double* alpha, const int32_t* start, const int32_t* count,      \
        const C* edge, const int16_t* place, const C* weight, T* dq, int64_t dq_outer, int64_t dq_inner,             \
        int64_t dq_step, T* dk, int64_t dk_outer, int64_t dk_inner, int64_t dk_step, T* dv, int64_t dv_outer,        \
        int64_t dv_inner, int64_t dv_step, C* k_parts, C* v_parts, double* dalpha, C* dbias, int64_t inner,          \
        int64_t heads, int64_t rows, int64_t n, int64_t e, int64_t d, int64_t masks, int64_t mask_rows,              \
        int64_t biases, int64_t bias_rows, int64_t alphas, int64_t diagonal, int64_t room, int64_t units,            \
        int64_t parts, int64_t spare, int64_t learned, int64_t sums, int64_t groups, double scale, int threads) {    \
        const AttentionOf<C> call = {{}, {}, {}, {mask, mask_of, masks, mask_rows}, {bias, bias_of, biases, bias_rows},\
                                     alpha, heads, rows, n, e, d, alphas > 1, diagonal, static_cast<C>(scale)};      \
        const Stored<T> stored = {GIVEN(q), GIVEN(k), GIVEN(v), GIVEN(grad)};                                        \
        const Gradient<T, C> to = {GIVEN(dq), GIVEN(dk), GIVEN(dv), k_parts, v_parts, dbias, dalpha,                 \
                                   parts, sums, groups, learned != 0};                                               \
        backward<T, C>(call, stored, {start, count, place, weight, edge}, to, threads);                              \
        return 0;                                                                                                    \
    }

ATTENTION(float, float, f32)
ATTENTION(Bfloat16, float, bf16)
ATTENTION(Float16, float, f16)
ATTENTION(double, double, f64)
