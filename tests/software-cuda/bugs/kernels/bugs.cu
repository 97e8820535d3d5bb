// One bug in each kernel, and controls without any. All are launched with one block of 64 threads unless the table in ../tests
// says otherwise; `in` has 64 words, `out` has 64 words, `n` is 64.
typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
#define KERNEL(name) extern "C" __global__ void __launch_bounds__(64) name(u32 *in, u32 *out, u32 n)
#define ALL 0xffffffffu

// Controls.

KERNEL(control_exchange) {
    __shared__ u32 s[64];
    u32 t = threadIdx.x;
    s[t] = in[t];
    __syncthreads();
    out[t] = s[(t + 1) % 64];
}

KERNEL(control_warp) {
    __shared__ u32 s[64];
    u32 t = threadIdx.x;
    s[t] = in[t];
    __syncwarp();
    u32 x = s[t ^ 1];
    __syncwarp();
    s[t] = x + 1;
    __syncwarp();
    out[t] = s[t ^ 2];
}

// Inclusive sums in a warp, a total by atomics, and a branch in between.
KERNEL(control_scan) {
    u32 t = threadIdx.x, lane = t & 31, v = in[t];
    for (u32 d = 1; d < 32; d *= 2) {
        u32 other = __shfl_up_sync(ALL, v, d);
        if (lane >= d) v += other;
    }
    if (lane == 31) atomicAdd(&out[63], v);
    if (t != 63) out[t] = v;
}

// Shared memory.

KERNEL(race_next) {
    __shared__ u32 s[64];
    u32 t = threadIdx.x;
    s[t] = in[t];
    out[t] = s[(t + 1) % 64];
}

// In ascending order the result is right.
KERNEL(race_previous) {
    __shared__ u32 s[65];
    u32 t = threadIdx.x;
    if (t == 0) s[0] = 7;
    s[t + 1] = in[t];
    out[t] = s[t];
}

// The second barrier of the loop is missing: a write after a read.
KERNEL(race_loop) {
    __shared__ u32 s[64];
    u32 t = threadIdx.x, sum = 0;
    for (u32 round = 0; round < 4; round++) {
        s[t] = in[t] + round;
        __syncthreads();
        sum += s[(t + 33) % 64];
    }
    out[t] = sum;
}

// __syncwarp is missing; lockstep hides it.
KERNEL(race_warp) {
    __shared__ u32 s[64];
    u32 t = threadIdx.x;
    s[t] = in[t];
    u32 x = s[t ^ 1];
    __syncwarp();
    out[t] = x;
}

// A shuffle orders no memory.
KERNEL(race_shuffle) {
    __shared__ u32 s[64];
    u32 t = threadIdx.x;
    s[t] = in[t];
    u32 x = __shfl_xor_sync(ALL, t, 1);
    out[t] = s[x & 63];
}

KERNEL(outside_shared) {
    __shared__ u32 s[64];
    u32 t = threadIdx.x;
    s[t + 1] = in[t];
    __syncthreads();
    out[t] = s[t];
}

// Runs out of one variable, into the next if they lie together.
KERNEL(outside_variable) {
    __shared__ u32 a[64];
    __shared__ u32 b[64];
    u32 t = threadIdx.x;
    a[t + (n == 64)] = in[t];
    b[t] = t;
    __syncthreads();
    out[t] = a[63 - t] + b[63 - t];
}

// Launched with 256 bytes of dynamic shared memory.
KERNEL(outside_dynamic) {
    extern __shared__ u32 d[];
    u32 t = threadIdx.x;
    d[t + 1] = in[t];
    __syncthreads();
    out[t] = d[t];
}

KERNEL(unwritten_shared) {
    __shared__ u32 s[64];
    u32 t = threadIdx.x;
    if (t < 63) s[t] = in[t];
    __syncthreads();
    out[t] = s[t];
}

// Global memory.

KERNEL(race_global) { out[0] += in[threadIdx.x]; }

// One of the two is atomic.
KERNEL(race_atomic) {
    u32 t = threadIdx.x;
    atomicAdd(&out[0], in[t]);
    if (t == 40) out[1] = out[0];
}

// Launched with two blocks: the second reads what the first has written.
KERNEL(race_blocks) {
    u32 t = threadIdx.x;
    if (blockIdx.x == 0) out[t] = in[t];
    else if (t == 0) in[0] = out[63];
}

// `in` is promised not to change, and so read through the cache that does not see writes.
extern "C" __global__ void __launch_bounds__(64) stale_cache(const u32 *__restrict__ in, u32 *out, u32 n) {
    u32 t = threadIdx.x;
    out[t] = in[(t + 1) % 64] + 1;
}

KERNEL(outside_global) {
    u32 t = threadIdx.x;
    out[t] = in[t] + in[t + 1];
}

KERNEL(outside_null) {
    u32 *p = n == 64 ? (u32 *)0 : in;
    if (threadIdx.x == 3) *(volatile u32 *)p = 1;
    out[threadIdx.x] = 0;
}

KERNEL(misaligned) {
    u32 t = threadIdx.x;
    u64 v = *(const u64 *)((const u8 *)in + 4 + 8 * (t % 8));
    out[t] = (u32)v;
}

// `out` has not been written before.
KERNEL(unwritten_global) {
    u32 t = threadIdx.x;
    out[t] = out[t] + in[t];
}

// Local memory.

KERNEL(unwritten_local) {
    u32 t = threadIdx.x;
    volatile u32 local[16];
    for (u32 i = 0; i < 15; i++) local[i] = in[(t + i) % 64];
    out[t] = local[in[t] == 0xffffffffu ? 0 : 15];
}

// Barriers and warps.

KERNEL(barrier_in_branch) {
    u32 t = threadIdx.x;
    if (t < 32) {
        out[t] = in[t];
        __syncthreads();
    } else {
        out[t] = 2 * in[t];
        asm volatile("bar.sync 0;" ::: "memory");
        out[t] += 1;
    }
}

KERNEL(barrier_after_return) {
    u32 t = threadIdx.x;
    if (t >= 60) return;
    out[t] = in[t];
    __syncthreads();
    out[t] += in[(t + 1) % 60];
}

// All lanes are named, only the odd ones come.
KERNEL(shuffle_in_branch) {
    u32 t = threadIdx.x, v = in[t];
    if (t & 1) v += __shfl_down_sync(ALL, v, 2);
    __syncwarp();
    out[t] = v;
}

// All lanes are named, the odd ones have ended.
KERNEL(shuffle_after_return) {
    u32 t = threadIdx.x, v = in[t];
    if (t & 1) return;
    v += __shfl_xor_sync(ALL, v, 2);
    out[t] = v;
}

KERNEL(shuffle_from_absent) {
    u32 t = threadIdx.x, v = in[t];
    if ((t & 31) < 16) v += __shfl_sync(0xffffu, v, 20);
    out[t] = v;
}

KERNEL(endless) {
    volatile u32 *flag = out;
    if (threadIdx.x == 0)
        while (flag[1] != 5) {}
    out[threadIdx.x] = 1;
}

KERNEL(trap) {
    if (threadIdx.x == 5) __trap();
    out[threadIdx.x] = in[threadIdx.x];
}
