// What all kernels share. They include nothing else: a compiler without headers is enough.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define ALL_LANES 0xffffffffu
#define LANES 32u

// Blocks are one-dimensional; the limit that the host launches with stands here, so that the compiler knows it.
// A kernel has one parameter, its job, by value; as a grid constant its address can be taken without a copy of it.
#define KERNEL(name, threads) extern "C" __global__ void __launch_bounds__(threads) name

// The same with a number of blocks that a multiprocessor is to hold: the assembler takes what registers that leaves before it spills, where its
// own guess of a limit is lower on some architectures.
#define KERNEL_WITH(name, threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks) name

// The number of this thread among all of the launch, and how many there are.
static __device__ u64 thread_number() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
static __device__ u64 thread_count() { return (u64)gridDim.x * blockDim.x; }

static __device__ u32 least(u32 a, u32 b) { return a < b ? a : b; }
