// Numbers of one type as another. Rounding is to the nearest, ties to even, done on bits, so that a processor gives the same.
#pragma once
#include "types.cuh"

enum Element { U8 = 0, I8 = 1, U16 = 2, I16 = 3, I32 = 4, F16 = 5, BF16 = 6, F32 = 7 };

static __device__ float as_float(u32 bits) { return __uint_as_float(bits); }

static __device__ float f16_to_f32(u16 half) {
    u32 sign = (u32)(half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 1023;
    if (exponent == 31) {
        // A signalling NaN becomes a quiet one.
        return as_float(sign | 0x7f800000u | fraction << 13 | (fraction ? 0x400000u : 0));
    }
    if (exponent == 0) {
        if (fraction == 0) return as_float(sign);
        u32 shift = __clz(fraction) - 21;
        return as_float(sign | (113 - shift) << 23 | (fraction << shift & 1023) << 13);
    }
    return as_float(sign | (exponent + 112) << 23 | fraction << 13);
}

static __device__ u16 f32_to_f16(float value) {
    u32 bits = __float_as_uint(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000u) return (u16)(sign | 0x7e00 | (magnitude >> 13 & 1023));
    if (magnitude >= 0x47800000u) return (u16)(sign | 0x7c00);  // 65536 and more
    u32 shift = 13, base;
    if (magnitude >= 0x38800000u) {
        base = magnitude - 0x38000000u;
    } else {
        // Less than the smallest normal number: the hidden bit moves down with the fraction.
        shift = 126 - (magnitude >> 23);
        if (shift > 24) return (u16)sign;
        base = (magnitude & 0x7fffff) | 0x800000;
    }
    u32 result = base >> shift, rest = base & ((1u << shift) - 1), middle = 1u << (shift - 1);
    if (rest > middle || (rest == middle && (result & 1))) result++;
    return (u16)(sign | result);
}

static __device__ float bf16_to_f32(u16 brain) {
    u32 bits = (u32)brain << 16;
    return as_float((bits & 0x7fffffff) > 0x7f800000u ? bits | 0x400000u : bits);
}

static __device__ u16 f32_to_bf16(float value) {
    u32 bits = __float_as_uint(value);
    if ((bits & 0x7fffffff) > 0x7f800000u) return (u16)(bits >> 16 | 0x40);
    return (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static __device__ float load(const u8 *at, u32 element) {
    switch (element) {
    case U8: return (float)*at;
    case I8: return (float)*(const signed char *)at;
    case U16: return (float)*(const u16 *)at;
    case I16: return (float)*(const short *)at;
    case I32: return (float)*(const int *)at;
    case F16: return f16_to_f32(*(const u16 *)at);
    case BF16: return bf16_to_f32(*(const u16 *)at);
    default: return *(const float *)at;
    }
}

// Integers: rounded, and as near as the type allows; not a number is zero.
static __device__ void store(u8 *output, u64 index, u32 element, float value) {
    switch (element) {
    case U8: {
        float rounded = rintf(value);
        output[index] = rounded >= 255.0f ? 255 : rounded > 0.0f ? (u8)rounded : 0;
        break;
    }
    case F16: ((u16 *)output)[index] = f32_to_f16(value); break;
    case BF16: ((u16 *)output)[index] = f32_to_bf16(value); break;
    default: ((float *)output)[index] = value;
    }
}
