// What kernels of this project are made of, to see that NVRTC's text of it is understood and gives the right numbers. Each thread
// has its place in `in` and `out`; the expected numbers are worked out in ../tests.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long s64;
#define KERNEL(name) extern "C" __global__ void name
#define ALL 0xffffffffu

__constant__ u32 table[8] = {3, 1, 4, 1, 5, 9, 2, 6};
__device__ u32 counter;

KERNEL(bits)(const u32 *in, u64 *out) {
    u32 t = blockIdx.x * blockDim.x + threadIdx.x;
    u32 a = in[2 * t], b = in[2 * t + 1];
    u64 w = (u64)a << 32 | b;
    u64 *o = out + 16 * t;
    o[0] = __popc(a) + 100 * __clz(b) + 10000 * __ffs(a);
    o[1] = __brev(a);
    o[2] = __funnelshift_l(a, b, t & 31);
    o[3] = __funnelshift_r(a, b, t & 31);
    o[4] = __byte_perm(a, b, 0x3605);
    o[5] = __umulhi(a, b);
    o[6] = __umul64hi(w, ~w);
    o[7] = w / (b | 1);
    o[8] = (u64)((s64)w % (s64)(a | 1));
    o[9] = a * (u64)b + 7;
    o[10] = (a & b) ^ (a | ~b) ^ (a >> (b & 31));
    o[11] = (u64)(((s64)w) >> (t & 63));
    o[12] = __popcll(w) + __clzll(w >> 9) * 256;
    o[13] = (u64)(int)(signed char)a + (u64)(short)b;
    unsigned __int128 big = (unsigned __int128)w * a + w;
    o[14] = (u64)(big >> 64);
    o[15] = table[a & 7] + min((int)a, (int)b) + max(a, b);
}

KERNEL(floats)(const float *in, u32 *out) {
    u32 t = blockIdx.x * blockDim.x + threadIdx.x;
    float a = in[2 * t], b = in[2 * t + 1];
    u32 *o = out + 16 * t;
    o[0] = __float_as_uint(a + b);
    o[1] = __float_as_uint(a * b + 1.0f);
    o[2] = __float_as_uint(a / b);
    o[3] = __float_as_uint(__fmaf_rn(a, b, -1.5f));
    o[4] = (u32)(int)a;
    o[5] = (u32)a;
    o[6] = __float2uint_rn(b);
    o[7] = (a < b) + 2 * (a <= b) + 4 * (a == b) + 8 * (a != b) + 16 * !(a > b);
    o[8] = __float_as_uint((float)((double)a * 3.0 / 7.0));
    o[9] = __float_as_uint((float)(int)__float_as_uint(a));
    o[10] = __float_as_uint(fminf(a, b)) ^ __float_as_uint(fmaxf(a, b));
    o[11] = __float_as_uint(sqrtf(fabsf(a)));
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(a));
    o[12] = h;
    float back;
    asm("cvt.f32.f16 %0, %1;" : "=f"(back) : "h"(h));
    o[13] = __float_as_uint(back);
    u32 s;
    asm("{ .reg .s32 w; cvt.rzi.s32.f32 w, %1; cvt.sat.u8.s32 %0, w; }" : "=r"(s) : "f"(b));
    o[14] = s;
    o[15] = __float_as_uint((float)in[2 * t] / 255.0f - 0.5f);
}

struct Pair {
    u32 a;
    u64 b;
};

__device__ __noinline__ Pair step(Pair p, u32 k) {
    p.a = p.a * 3 + k;
    p.b += p.a;
    return p;
}

__device__ __noinline__ u32 sum_down(u32 n) { return n == 0 ? 0 : n + sum_down(n - 1); }

KERNEL(calls)(const u32 *in, u64 *out) {
    u32 t = blockIdx.x * blockDim.x + threadIdx.x;
    Pair p = {in[t], 5};
    for (u32 k = 0; k < (in[t] & 3); k++) p = step(p, k);
    out[2 * t] = p.b;
    out[2 * t + 1] = (t & 1) ? sum_down(t & 15) : 0;
}

KERNEL(choices)(const u32 *in, u32 *out) {
    u32 t = blockIdx.x * blockDim.x + threadIdx.x;
    u32 x = in[t], y = 0;
    for (u32 i = 0; i < 8; i++) {
        switch ((x >> (3 * i)) & 7) {
        case 0: y += x ^ 77; break;
        case 1: y = y * 3; break;
        case 2: y ^= t << 2; break;
        case 3: y -= 9; break;
        case 4: y = (y << 5) | (y >> 27); break;
        case 5: y += table[y & 7]; break;
        case 6: continue;
        default: y = ~y;
        }
        if (y == 0x12345) break;
        y += 1;
    }
    out[t] = y;
}

KERNEL(local_table)(const u32 *in, u32 *out) {
    u32 t = blockIdx.x * blockDim.x + threadIdx.x;
    u32 order[16];
    // Not unrolled: which loads of known places the compiler joins depends on where its own memory lies.
#pragma unroll 1
    for (u32 i = 0; i < 16; i++) order[i] = i;
#pragma unroll 1
    for (u32 i = 15; i > 0; i--) {
        u32 j = (in[t] >> i) % (i + 1), swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
    u32 y = 0;
#pragma unroll 1
    for (u32 i = 0; i < 16; i++) y = y * 17 + order[i];
    out[t] = y;
}

KERNEL(warp_votes)(const u32 *in, u32 *out) {
    u32 t = blockIdx.x * blockDim.x + threadIdx.x, v = in[t];
    u32 *o = out + 8 * t;
    o[0] = __ballot_sync(ALL, v & 1);
    o[1] = __any_sync(ALL, v == 0) + 2 * __all_sync(ALL, v != 0);
    o[2] = __match_any_sync(ALL, v & 3);
    o[3] = __shfl_xor_sync(ALL, v, 5);
    o[4] = __shfl_down_sync(ALL, v, 3, 8);
    u32 y = 0;
    if (v & 1) y = __ballot_sync(__activemask(), v & 2);
    o[5] = y != 0;
    o[6] = __syncthreads_count(v & 4);
    o[7] = __syncthreads_or(v == 3) + 2 * __syncthreads_and(v < 1000);
}

KERNEL(block_sum)(const uint4 *in, u64 *out, u32 n) {
    __shared__ u64 sums[8];
    u64 sum = 0;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        uint4 v = in[i];
        sum += (u64)v.x + v.y + v.z + v.w;
    }
    for (u32 d = 16; d > 0; d /= 2) sum += __shfl_down_sync(ALL, sum, d);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (u32 i = 1; i < blockDim.x / 32; i++) sum += sums[i];
        atomicAdd(out, sum);
        atomicAdd(&counter, 1);
        atomicMin((u32 *)(out + 1), (u32)(sum & 0xffff));
        atomicMax((u32 *)(out + 1) + 1, (u32)(sum & 0xffff));
        u64 seen = out[2];
    }
    if (threadIdx.x == 1) {
        u64 old = 0, wanted;
        do {
            wanted = old;
            old = atomicCAS(out + 2, wanted, wanted + blockIdx.x + 1);
        } while (old != wanted);
    }
}

KERNEL(matrix)(const u32 *a, const u32 *b, int *c) {
    int x = 0, y = 0;
    u32 t = threadIdx.x;
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.u8.u8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};" : "+r"(x), "+r"(y) : "r"(a[t]), "r"(b[t]));
    c[2 * t] = x;
    c[2 * t + 1] = y;
}

KERNEL(bytes)(const u8 *in, u8 *out, u32 n) {
    extern __shared__ u8 stage[];
    u32 t = threadIdx.x;
    for (u32 i = t; i < n; i += blockDim.x) stage[i] = in[i];
    __syncthreads();
    for (u32 i = t; i < n; i += blockDim.x) out[i] = stage[n - 1 - i];
}
