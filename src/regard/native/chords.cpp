// The chord quadrature of the paraboloid in two dimensions.

#include "powers.h"

namespace {

// Sine and cosine between -pi/2 and pi/2.
INLINE void turn(const Floats& x, Floats& sine, Floats& cosine) {
    const Floats z = x * x;
    const Floats odd = 8.3333333e-3f + z * (-1.9841270e-4f + z * (2.7557319e-6f - z * 2.5052108e-8f));
    sine = x + x * z * (-1.6666667e-1f + z * odd);
    const Floats tail = -1.3888889e-3f + z * (2.4801587e-5f + z * (-2.7557319e-7f + z * 2.0876757e-9f));
    cosine = 1.0f + z * (-0.5f + z * (4.1666667e-2f + z * tail));
}

// The standard normal density without its constant, and the mass beyond |x| (Abramowitz and Stegun, 7.1.26).
INLINE void bell(const Floats& x, Floats& height, Floats& beyond) {
    const Floats zero = {}, size = choose(x < zero, -x, x), t = 1.0f / (1.0f + 0.23164189f * size);
    height = exp_of<Floats, Whole>(-0.5f * x * x);
    const Floats tail = 0.7107068705f + t * (-0.7265760135f + t * 0.5307027145f);
    beyond = height * t * (0.127414796f + t * (-0.142248368f + t * tail));
}

}  // namespace

// Gaussians under the paraboloid of an ellipse, as _block in continuous/quadrature.py with p = 1 and q = 1 or 2: eight
// ellipses at a time, one chord after another. `ratio` is the constant of q over that of p; `out` gets six sums each.
static void chords_of(const float* y1, const float* y2, const float* length, const float* width, float* out,
                               int64_t count, const float* node, const float* weight, int64_t nodes, int64_t q,
                               float reach, float ratio) {
    const Floats zero = {};
    const float root = 0.3989422804f;  // 1 / sqrt(2 pi)
    for (int64_t first = 0; first < count; first += lanes) {
        Floats a = zero, b = zero, wide = zero + 1.0f, narrow = zero + 2.0f, middle = zero, half_angle = zero;
        const int64_t here = std::min(lanes, count - first);
        for (int64_t r = 0; r < here; ++r) {
            a[r] = y1[first + r], b[r] = y2[first + r], wide[r] = length[first + r], narrow[r] = width[first + r];
            const float low = std::asin(std::max(-1.0f, std::min(1.0f, (-reach - a[r]) / wide[r])));
            const float high = std::asin(std::max(-1.0f, std::min(1.0f, (reach - a[r]) / wide[r])));
            middle[r] = 0.5f * (high + low), half_angle[r] = 0.5f * (high - low);
        }
        Floats sums[6] = {zero, zero, zero, zero, zero, zero};
        for (int64_t j = 0; j < nodes; ++j) {
            Floats sine, cosine, upper, lower, above_mass, below_mass;
            turn(middle + half_angle * node[j], sine, cosine);
            cosine = choose(cosine > 1e-4f, cosine, zero + 1e-4f);
            const Floats along = a + wide * sine, h = narrow * cosine, above = b + h, below = b - h;
            bell(above, upper, above_mass);
            bell(below, lower, below_mass);
            const Floats inside = 1.0f - (above_mass + below_mass), beside = above_mass - below_mass;
            const Floats mass = choose(above < zero, beside, choose(below > zero, -beside, inside));
            const Floats edge = h * root * (upper + lower), moment = root * (lower - upper) - b * mass;
            const Floats flat = h * h, first_power = (flat - 1.0f) * mass + b * moment + edge;
            const Floats square = cosine * cosine, inverse = 1.0f / h, cube = inverse * inverse * inverse;
            const Floats bump = exp_of<Floats, Whole>(-0.5f * along * along) * (root * weight[j]);
            const Floats kernel = bump * square * square * cube;
            const Floats v = kernel * first_power, s = -2.0f * kernel * moment, v_along = v * along;
            sums[0] += v;
            sums[1] += v_along;
            sums[2] += s;
            if (q == 1) {
                sums[3] += v_along * along - v;
                sums[4] += s * along;
                sums[5] += 2.0f * kernel * (edge - mass);
            } else {
                const Floats next = -b * first_power - 2.0f * moment;
                const Floats second_power = (flat - 3.0f) * first_power + b * next + 2.0f * flat * mass;
                const Floats higher = kernel * square * inverse * inverse * ratio;
                // By parts on a large ellipse, as there.
                const Floats direct = (along * along - 1.0f) * higher * second_power;
                sums[3] += choose(wide > 2.0f, -4.0f * ratio * v_along * sine / wide, direct);
                sums[4] += -4.0f * higher * next * along;
                sums[5] += -4.0f * higher * (3.0f * first_power - 2.0f * flat * mass);
            }
        }
        for (int64_t r = 0; r < here; ++r)
            for (int64_t e = 0; e < 6; ++e) out[(first + r) * 6 + e] = sums[e][r] * half_angle[r];
    }
}

EXPORT int regard_chords_f32(const float* y1, const float* y2, const float* length, const float* width, float* out,
                                 int64_t count, const float* node, const float* weight, int64_t nodes, int64_t q,
                                 double reach, double ratio, int threads) {
    const int parts = threads_for(count * nodes, threads);
    PARALLEL(num_threads(parts))
    for (int part = 0; part < parts; ++part) {
        const int64_t a = count * part / parts, b = count * (part + 1) / parts;
        chords_of(y1 + a, y2 + a, length + a, width + a, out + 6 * a, b - a, node, weight, nodes, q,
                  static_cast<float>(reach), static_cast<float>(ratio));
    }
    return 0;
}
