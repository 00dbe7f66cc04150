// Summaries of softmax attention: entropy, support, mass by key and by region, largest weights, tile by tile of queries.

#include <vector>

#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-function"  // of the products, some serve other kernels
#endif
#include "register_powers.h"

namespace {

constexpr int64_t in_cache = 196608;  // scores of a tile of queries, so that they stay in the second cache
constexpr float log2e = 1.44269504f, ln2 = 0.69314718f;
constexpr float lowest = -3.0e38f;     // a score without a weight
constexpr float faintest = -103.972f;  // the logarithm of the least weight that is not zero in float32

struct Sizes {
    int64_t rows, n, e, regions, top, diagonal;
    int64_t seen(int64_t row) const { return std::max<int64_t>(0, std::min(n, row + diagonal + 1)); }
};

// Where the results of one head go, from its first query on.
struct Results {
    float* entropy;
    int64_t* support;
    float* top_weight;
    int64_t* top_place;
    float* mass;
};

INLINE Wide largest_of(const Wide& a, const Wide& b) { return choose(a > b, a, b); }

INLINE bool any_above(const Wide& x, float edge) {
#if defined(__AVX512F__) && defined(__GNUC__) && !defined(REGARD_NO_VECTORS)
    return _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(edge), _CMP_GT_OQ) != 0;
#else
    bool any = false;
    for (int64_t j = 0; j < wide; ++j) any |= x[j] > edge;
    return any;
#endif
}

// The largest and the smallest of `room` scores, whole registers.
INLINE void extremes(const float* s, int64_t room, float& high, float& low) {
    Wide top = load(s), bottom = top;
    for (int64_t j = wide; j < room; j += wide) {
        const Wide x = load(s + j);
        top = largest_of(x, top);
        bottom = choose(x < bottom, x, bottom);
    }
    high = top[0], low = bottom[0];
    for (int64_t j = 1; j < wide; ++j) high = std::max(high, float(top[j])), low = std::min(low, float(bottom[j]));
}

// exp(s - high) in place of the scores; their sum, and that of them times the base-two logarithm of each.
INLINE void exponentials(float* s, int64_t room, float high, float& sum, float& moment) {
    const Wide zero = {}, least = zero - 125.0f;
    Wide sums[2] = {zero, zero}, moments[2] = {zero, zero};
    int64_t j = 0;
    for (; j + 2 * wide <= room; j += 2 * wide)
        for (int half = 0; half < 2; ++half) {
            float* at = s + j + half * wide;
            const Wide y = (load(at) - high) * log2e, bounded = choose(y < least, least, y);
            const Wide x = choose(y < least, zero, exp2_of(bounded));
            store(at, x);
            sums[half] += x;
            moments[half] += x * bounded;
        }
    for (; j < room; j += wide) {
        const Wide y = (load(s + j) - high) * log2e, bounded = choose(y < least, least, y);
        const Wide x = choose(y < least, zero, exp2_of(bounded));
        store(s + j, x);
        sums[0] += x;
        moments[0] += x * bounded;
    }
    sum = total(sums[0] + sums[1]), moment = total(moments[0] + moments[1]);
}

INLINE float inner(const float* x, const float* y, int64_t n) {
    Wide sums[2] = {Wide{}, Wide{}};
    int64_t j = 0;
    for (; j + 2 * wide <= n; j += 2 * wide) {
        sums[0] += load(x + j) * load(y + j);
        sums[1] += load(x + j + wide) * load(y + j + wide);
    }
    float rest = 0;
    for (; j < n; ++j) rest += x[j] * y[j];
    return total(sums[0] + sums[1]) + rest;
}

// The largest of n weights, in order, by insertion: after the first few hardly any is large enough.
static void largest(const float* x, int64_t n, int64_t room, int64_t top, float factor, float* weight, int64_t* place) {
    int64_t count = 0;
    float edge = 0.0f;  // a weight of zero is none
    for (int64_t first = 0; first < room; first += wide) {
        if (!any_above(load(x + first), edge)) continue;
        for (int64_t j = first; j < std::min(n, first + wide); ++j) {
            if (!(x[j] > edge)) continue;
            int64_t at = count < top ? count++ : top - 1;
            for (; at > 0 && weight[at - 1] < x[j]; --at) weight[at] = weight[at - 1], place[at] = place[at - 1];
            weight[at] = x[j], place[at] = j;
            if (count == top) edge = weight[top - 1];
        }
    }
    for (int64_t i = 0; i < top; ++i) {
        if (i >= count) weight[i] = 0.0f, place[i] = -1;
        weight[i] *= factor;
        if (!(weight[i] > 0.0f)) place[i] = -1;
    }
}

// One query: its scores become weights up to the factor that is returned.
static float summarize_row(float* s, int64_t seen, const Sizes& size, const float* shares, int64_t row, Results to) {
    const int64_t room = padded(seen);
    if (seen == 0) {
        to.entropy[row] = 0.0f, to.support[row] = 0;
        std::fill_n(to.top_weight + row * size.top, size.top, 0.0f);
        std::fill_n(to.top_place + row * size.top, size.top, int64_t(-1));
        std::fill_n(to.mass + row * size.regions, size.regions, 0.0f);
        return 0.0f;
    }
    float high, low, sum, moment;
    for (int64_t j = seen; j < room; ++j) s[j] = s[0];
    extremes(s, room, high, low);
    for (int64_t j = seen; j < room; ++j) s[j] = lowest;
    int64_t support = seen;
    const float edge = high + std::log(static_cast<float>(seen)) + faintest;  // the sum is at most `seen`
    std::vector<float> kept;
    if (low <= edge) kept.assign(s, s + seen);
    exponentials(s, room, high, sum, moment);
    if (low <= edge) {
        const float exact = high + std::log(sum) + faintest;
        support = 0;
        for (int64_t j = 0; j < seen; ++j) support += kept[j] > exact;
    }
    const float factor = 1.0f / sum;
    to.entropy[row] = std::log(sum) - ln2 * moment * factor;
    to.support[row] = support;
    for (int64_t m = 0; m < size.regions; ++m)
        to.mass[row * size.regions + m] = factor * inner(s, shares + m * size.n, seen);
    if (size.top) largest(s, seen, room, size.top, factor, to.top_weight + row * size.top, to.top_place + row * size.top);
    return factor;
}

// The weights of a tile, added over its queries to the mass of each key.
static void add_mass(const float* s, int64_t step, int64_t count, const float* factor, int64_t n, float* received) {
    int64_t j = 0;
    for (; j + 2 * wide <= n; j += 2 * wide) {
        Wide one = {}, other = {};
        for (int64_t r = 0; r < count; ++r) {
            one += load(s + r * step + j) * factor[r];
            other += load(s + r * step + j + wide) * factor[r];
        }
        store(received + j, load(received + j) + one);
        store(received + j + wide, load(received + j + wide) + other);
    }
    for (; j < n; ++j) {
        float sum = 0;
        for (int64_t r = 0; r < count; ++r) sum += s[r * step + j] * factor[r];
        received[j] += sum;
    }
}

}  // namespace

// Summaries of softmax(q k^T), query i seeing the keys up to i + diagonal. Part p of the queries of all heads, in order,
// adds the mass by key to received[p]; no parts leave it out.
EXPORT int regard_summarize(const float* q, const float* k, const float* shares, float* entropy, int64_t* support,
                            float* received, float* top_weight, int64_t* top_place, float* mass,
                            int64_t heads, int64_t rows, int64_t n, int64_t e, int64_t regions, int64_t top,
                            int64_t received_parts, int64_t diagonal, int threads) {
    const Sizes size = {rows, n, e, regions, top, diagonal};
    const int64_t step = padded(n) + wide;  // rows that lie a power of two apart would fall on each other in the cache
    const int64_t tile_rows = std::max<int64_t>(tall, std::min<int64_t>(8, in_cache / step / tall) * tall);
    const int64_t tiles = (rows + tile_rows - 1) / tile_rows;
    const int parts = received_parts ? static_cast<int>(received_parts) : threads_for(heads * rows * n, threads);
    PARALLEL(num_threads(parts))
    for (int part = 0; part < parts; ++part) {
        std::vector<float> packed(padded(n) * e), scores(tile_rows * step), factor(tile_rows);
        int64_t packed_head = -1;
        for (int64_t at = heads * tiles * part / parts; at < heads * tiles * (part + 1) / parts; ++at) {
            const int64_t head = at / tiles, first = at % tiles * tile_rows, count = std::min(tile_rows, rows - first);
            if (head != packed_head) pack(k + head * n * e, e, n, e, 1.0f, packed.data());
            packed_head = head;
            const int64_t some = size.seen(first + count - 1);
            inner_products(q + (head * rows + first) * e, e, count, e, packed.data(), n, some, scores.data(), step);
            const Results to = {entropy + head * rows, support + head * rows, top_weight + head * rows * top,
                                top_place + head * rows * top, mass + head * rows * regions};
            const float* own = shares + head * regions * n;
            for (int64_t r = 0; r < count; ++r) {
                float* s = scores.data() + r * step;
                const int64_t seen = size.seen(first + r);
                factor[r] = summarize_row(s, seen, size, own, first + r, to);
                std::fill(s + seen, s + std::max(seen, some), 0.0f);
            }
            if (received_parts)
                add_mass(scores.data(), step, count, factor.data(), some, received + (part * heads + head) * n);
        }
    }
    return 0;
}
