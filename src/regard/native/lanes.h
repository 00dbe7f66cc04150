// Vectors of four and eight numbers: those of the compiler where it has them, else a struct with the same operators.
#pragma once

#include <cstring>
#include <type_traits>

#include "common.h"

namespace {

// Numbers in the widest register.
#if defined(__AVX512F__)
constexpr int64_t wide = 16;
#elif defined(__AVX2__)
constexpr int64_t wide = 8;
#else
constexpr int64_t wide = 4;
#endif

#if defined(__GNUC__) && !defined(REGARD_NO_VECTORS)

typedef double Four __attribute__((vector_size(32), aligned(8)));
typedef float Floats __attribute__((vector_size(32), aligned(4)));
typedef int32_t Whole __attribute__((vector_size(32), aligned(4)));

INLINE Floats number(const Whole& x) { return __builtin_convertvector(x, Floats); }
INLINE Whole whole(const Floats& x) { return __builtin_convertvector(x, Whole); }

typedef float Wide __attribute__((vector_size(4 * wide), aligned(4)));
typedef int32_t WideWhole __attribute__((vector_size(4 * wide), aligned(4)));
typedef double WideDoubles __attribute__((vector_size(4 * wide), aligned(8)));
#if defined(__AVX512F__) || !defined(__AVX2__)  // else they are those of eight
INLINE Wide number(const WideWhole& x) { return __builtin_convertvector(x, Wide); }
INLINE WideWhole whole(const Wide& x) { return __builtin_convertvector(x, WideWhole); }
#endif

// Vectors in memory. By std::memcpy GCC moves one of 32 bytes in two halves by way of the stack, and whatever reads it
// then waits for both.
template <typename V>
struct InMemory {
    typedef V Type __attribute__((may_alias, aligned(4)));  // a template forgets where V may lie
};

template <typename V, typename T>
INLINE V vector_at(const T* x) {
    return *reinterpret_cast<const typename InMemory<V>::Type*>(x);
}

template <typename V, typename T>
INLINE void put(T* x, const V& y) {
    *reinterpret_cast<typename InMemory<V>::Type*>(x) = y;
}

// The same bits as another type of as many.
template <typename To, typename From>
INLINE To bits_as(const From& x) {
    if constexpr (std::is_arithmetic_v<From>) {
        To y;
        std::memcpy(&y, &x, sizeof(y));
        return y;
    } else {
        return (To)x;
    }
}

#else

#define OPERATOR(R, op, result)                                                            \
    friend Vector<R, n> operator op(const Vector& a, const Vector& b) {                    \
        Vector<R, n> c;                                                                    \
        for (int i = 0; i < n; ++i) c.of[i] = static_cast<R>(result(a.of[i] op b.of[i]));  \
        return c;                                                                          \
    }                                                                                      \
    friend Vector<R, n> operator op(const Vector& a, T b) { return a op Vector::all(b); }  \
    friend Vector<R, n> operator op(T a, const Vector& b) { return Vector::all(a) op b; }
#define VALUE(x) (x)
#define MASK(x) ((x) ? -1 : 0)

template <typename T, int n>
struct Vector {
    typedef std::conditional_t<sizeof(T) == 4, int32_t, int64_t> Bits;  // a comparison gives ones or zeros in every bit
    T of[n];
    static Vector all(T x) {
        Vector a;
        for (int i = 0; i < n; ++i) a.of[i] = x;
        return a;
    }
    T& operator[](int64_t i) { return of[i]; }
    const T& operator[](int64_t i) const { return of[i]; }
    OPERATOR(T, +, VALUE)
    OPERATOR(T, -, VALUE)
    OPERATOR(T, *, VALUE)
    OPERATOR(T, /, VALUE)
    OPERATOR(Bits, <, MASK)
    OPERATOR(Bits, >, MASK)
    OPERATOR(Bits, <=, MASK)
    Vector operator-() const { return *this * T(-1); }
    Vector& operator+=(const Vector& b) { return *this = *this + b; }
    Vector& operator-=(const Vector& b) { return *this = *this - b; }
};

template <typename T, int n>
INLINE Vector<T, n> operator&(const Vector<T, n>& a, const Vector<T, n>& b) {
    Vector<T, n> c;
    for (int i = 0; i < n; ++i) c.of[i] = a.of[i] & b.of[i];
    return c;
}

template <typename T, int n>
INLINE Vector<T, n> operator|(const Vector<T, n>& a, const Vector<T, n>& b) {
    Vector<T, n> c;
    for (int i = 0; i < n; ++i) c.of[i] = a.of[i] | b.of[i];
    return c;
}

template <typename T, int n>
INLINE Vector<T, n> operator~(const Vector<T, n>& a) {
    return Vector<T, n>::all(-1) - a;
}

template <int n>
INLINE Vector<int32_t, n> operator>>(const Vector<int32_t, n>& a, int bits) {
    Vector<int32_t, n> c;
    for (int i = 0; i < n; ++i) c.of[i] = a.of[i] >> bits;
    return c;
}

template <typename T, int n>
INLINE Vector<T, n> choose(const Vector<typename Vector<T, n>::Bits, n>& mask, const Vector<T, n>& a,
                           const Vector<T, n>& b) {
    Vector<T, n> c;
    for (int i = 0; i < n; ++i) c.of[i] = mask.of[i] ? a.of[i] : b.of[i];
    return c;
}

template <typename V, typename T>
INLINE V vector_at(const T* x) {
    V y;
    std::memcpy(&y, x, sizeof(y));
    return y;
}

template <typename V, typename T>
INLINE void put(T* x, const V& y) {
    std::memcpy(x, &y, sizeof(y));
}

template <typename To, typename From>
INLINE To bits_as(const From& x) {
    return vector_at<To>(&x);
}

typedef Vector<double, 4> Four;
typedef Vector<float, 8> Floats;
typedef Vector<int32_t, 8> Whole;

typedef Vector<float, wide> Wide;
typedef Vector<int32_t, wide> WideWhole;
typedef Vector<double, wide / 2> WideDoubles;

template <int n>
INLINE Vector<float, n> number(const Vector<int32_t, n>& x) {
    Vector<float, n> y;
    for (int i = 0; i < n; ++i) y.of[i] = static_cast<float>(x.of[i]);
    return y;
}

template <int n>
INLINE Vector<int32_t, n> whole(const Vector<float, n>& x) {
    Vector<int32_t, n> y;
    for (int i = 0; i < n; ++i) y.of[i] = static_cast<int32_t>(x.of[i]);
    return y;
}

#endif

// a where `mask` is true, else b: of one number or of each in a vector of the compiler. By value: a template forgets
// that these vectors may lie anywhere.
template <typename M, typename A>
INLINE A choose(M mask, A a, A b) {
    return mask ? a : b;
}

}  // namespace
