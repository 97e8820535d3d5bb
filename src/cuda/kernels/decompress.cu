// Snappy (format_description.txt of the project) and LZ4 blocks (lz4_Block_format.md), a warp for each page.
//
// Both are a chain: where an element begins is known from the one before. So all lanes hold the same state, and do the same but for the
// bytes that they copy. What is stored is looked at through a window in registers, of which the far half is loaded long before it is
// needed; bytes that are copied are loaded past it.
//
// Nothing of a page is trusted but its place. Each element is checked against what is left of the stored bytes and of the place before
// anything is done with it, and takes at least one stored byte, so that every page ends. A page that is refused is zeros.
#include "types.cuh"

#define THREADS 64

enum Codec { SNAPPY = 0, LZ4 = 1 };

// As in `decompress.rs`, which says what they are.
enum Check { HEADER = 2, SIZE = 3, END = 4, ROOM = 5, OFFSET = 6 };

struct Body {
    u64 source;  // address of the stored bytes
    u64 target;  // address of the page
    u32 stored;  // bytes of the source, less than 2^31
    u32 plain;   // the first of them, which are not compressed
    u32 len;     // bytes of the page, less than 2^31
    u32 gap;     // zeros behind it
    u32 codec;
    u32 unused;
};
static_assert(sizeof(Body) == 40);  // what `decompress` in decompress.rs writes

struct DecompressJob {
    const Body *bodies;
    u64 count;
    u32 *checks;  // one for each; 0: all of it
};
static_assert(sizeof(DecompressJob) == 24);  // the same

// Stored bytes from `origin` on, a multiple of four; places in them are counted from there.
struct Window {
    u64 origin;
    u32 end;    // the first place behind them
    u32 first;  // the place of the window
    u32 near;   // this lane's word of its 128 bytes
    u32 far;    // and of the next 128
};

// This lane's word of the 128 bytes at `place`; words behind the end are zero. The last one may have some bytes behind it.
static __device__ u32 load_word(const Window &window, u32 place) {
    u32 own = place + threadIdx.x % LANES * 4;
    return own < window.end ? *(const u32 *)(window.origin + own) : 0;
}

static __device__ void move_window(Window &window, u32 place) {
    window.first = place & ~3u;
    window.near = load_word(window, window.first);
    window.far = load_word(window, window.first + 128);
}

// Four bytes from `place` on, which is not behind the end, and not before the window; the same in all lanes.
static __device__ u32 look(Window &window, u32 place) {
    u32 ahead = place - window.first;
    if (ahead >= 128) {
        if (ahead < 256) {
            window.first += 128;
            window.near = window.far;
            window.far = load_word(window, window.first + 128);
        } else {
            move_window(window, place);
        }
        ahead = place - window.first;
    }
    u32 word = ahead / 4, next = (word + 1) % LANES;
    u32 low = __shfl_sync(ALL_LANES, window.near, word);
    u32 high = __shfl_sync(ALL_LANES, next ? window.near : window.far, next);
    return __funnelshift_r(low, high, ahead * 8);
}

// Bytes that do not overlap, in words: none is loaded that has no byte of them, but its other bytes are loaded as well.
static __device__ void copy_words(u8 *to, const u8 *from, u32 count) {
    u32 lane = threadIdx.x % LANES;
    u32 head = least((u32)(0 - (u64)to) % 4, count), words = (count - head) / 4, tail = (count - head) % 4;
    if (lane < head) to[lane] = from[lane];
    u32 *target = (u32 *)(to + head);
    u64 source = (u64)from + head;
    u32 shift = (u32)(source % 4) * 8;
    const u32 *aligned = (const u32 *)(source & ~3ull);
#pragma unroll 4
    for (u32 i = lane; i < words; i += LANES)
        target[i] = shift ? __funnelshift_r(aligned[i], aligned[i + 1], shift) : aligned[i];
    u32 done = head + words * 4;
    if (lane < tail) to[done + lane] = from[done + lane];
}

static __device__ void copy_bytes(u8 *to, const u8 *from, u32 count) {
#pragma unroll 1
    for (u32 i = threadIdx.x % LANES; i < count; i += LANES) to[i] = from[i];
}

// Bytes that are stored. Most elements are of a few.
static __device__ void literal(u8 *to, const u8 *from, u32 count) {
    u32 lane = threadIdx.x % LANES;
    if (count <= LANES) {
        if (lane < count) to[lane] = from[lane];
    } else if (count < 128) {
        copy_bytes(to, from, count);
    } else {
        copy_words(to, from, count);
    }
}

// `count` bytes, each of which is the one `offset` before.
static __device__ void match(u8 *to, u32 offset, u32 count) {
    // What other lanes wrote is read.
    __syncwarp();
    u32 lane = threadIdx.x % LANES;
    if (count <= LANES && offset >= count) {
        if (lane < count) to[lane] = (to - offset)[lane];
        return;
    }
    // Words of the source end before the target, so that none is loaded while it is written.
    if (count >= 128 && offset >= count + 3) return copy_words(to, to - offset, count);
    if (offset >= count) return copy_bytes(to, to - offset, count);
    // The bytes before are a pattern that is repeated. A distance of several times their number leads to the same bytes, so that after
    // some of them the rest is copied in words.
    u32 distance = offset, begun = count;
    if (count >= 1024 && offset < 1024) {
        distance = (1023 / offset + 1) * offset;
        begun = least(distance, count);
    } else if (count >= 1024) {
        begun = 0;
    }
    u32 at = offset < LANES ? lane % offset : lane, step = offset < LANES ? LANES % offset : LANES;
#pragma unroll 1
    for (u32 i = lane; i < begun; i += LANES) {
        to[i] = (to - offset)[at];
        at += step;
        if (at >= offset) at -= offset;
    }
#pragma unroll 1
    while (begun < count) {
        __syncwarp();
        u32 now = least(distance - 3, count - begun);
        copy_words(to + begun, to + begun - distance, now);
        begun += now;
        if (distance < 65536 && begun + offset >= 2 * distance) distance *= 2;
    }
}

static __device__ u32 snappy(Window &window, u32 at, u8 *to, u32 len) {
    u32 end = window.end, done = 0;
    u64 promised = 0;
    if (at >= end) return END;
#pragma unroll 1
    for (u32 shift = 0;; shift += 7) {
        if (shift == 35) return HEADER;
        if (at >= end) return END;
        u32 byte = look(window, at) & 0xff;
        at++;
        promised |= (u64)(byte & 0x7f) << shift;
        if (byte < 0x80) break;
    }
    if (promised != len) return SIZE;
    while (at < end) {
        u32 bytes = look(window, at), tag = bytes & 0xff, kind = tag & 3, more = bytes >> 8;
        at++;
        if (kind == 0) {
            u32 count = tag >> 2;
            if (count >= 60) {
                u32 size = count - 59;
                if (size > end - at) return END;
                count = size == 4 ? look(window, at) : more & ((1u << size * 8) - 1);
                at += size;
            }
            // One less than there are.
            if (count >= end - at) return END;
            if (count >= len - done) return ROOM;
            count++;
            literal(to + done, (const u8 *)window.origin + at, count);
            at += count;
            done += count;
        } else {
            u32 size = kind == 3 ? 4 : kind;
            if (size > end - at) return END;
            u32 count = (tag >> 2) + 1, offset = more & 0xffff;
            if (kind == 1) {
                count = (tag >> 2 & 7) + 4;
                offset = tag >> 5 << 8 | (more & 0xff);
            } else if (kind == 3) {
                offset = look(window, at);
            }
            if (offset == 0 || offset > done) return OFFSET;
            if (count > len - done) return ROOM;
            match(to + done, offset, count);
            at += size;
            done += count;
        }
    }
    return done == len ? 0 : SIZE;
}

// Adds the bytes up to one that is not 255 to `count`, which becomes no more than `most` by it. Gives what is wrong, or 0.
static __device__ u32 add_bytes(Window &window, u32 &at, u32 &count, u32 most) {
#pragma unroll 1
    while (true) {
        if (at >= window.end) return END;
        u32 bytes = look(window, at), last = bytes & 0xff, sum = last, taken = 1;
        if (bytes == ALL_LANES && window.end - at >= 4) {
            sum = 4 * 255;
            taken = 4;
        }
        if (count > most || sum > most - count) return ROOM;
        count += sum;
        at += taken;
        if (last != 255) return 0;
    }
}

static __device__ u32 lz4(Window &window, u32 at, u8 *to, u32 len) {
    u32 end = window.end, done = 0;
    while (true) {
        // After a match comes another element: the last one has only stored bytes, or none.
        if (at >= end) return END;
        u32 bytes = look(window, at), token = bytes & 0xff, count = token >> 4;
        at++;
        if (count == 15) {
            u32 wrong = add_bytes(window, at, count, len - done);
            if (wrong) return wrong;
        }
        if (count > end - at) return END;
        if (count > len - done) return ROOM;
        literal(to + done, (const u8 *)window.origin + at, count);
        bool none = count == 0;
        at += count;
        done += count;
        if (at >= end) break;
        if (end - at < 2) return END;
        u32 offset = (none ? bytes >> 8 : look(window, at)) & 0xffff;
        at += 2;
        if (offset == 0 || offset > done) return OFFSET;
        count = (token & 15) + 4;
        if (count == 19) {
            u32 wrong = add_bytes(window, at, count, len - done);
            if (wrong) return wrong;
        }
        if (count > len - done) return ROOM;
        match(to + done, offset, count);
        done += count;
    }
    return done == len ? 0 : SIZE;
}

// With a number of blocks, as the compiler else spills registers for more of them than help.
extern "C" __global__ void __launch_bounds__(THREADS, 8) decompress(const __grid_constant__ DecompressJob given) {
    const DecompressJob *job = &given;
    u32 lane = threadIdx.x % LANES;
    u64 warps = thread_count() / LANES;
    for (u64 index = thread_number() / LANES; index < job->count; index += warps) {
        const Body *body = &job->bodies[index];
        u8 *to = (u8 *)body->target;
        u32 len = body->len, plain = body->plain;
        literal(to, (const u8 *)body->source, plain);
        Window window;
        window.origin = body->source & ~3ull;
        u32 before = (u32)(body->source - window.origin);
        window.end = before + body->stored;
        u32 at = before + plain;
        move_window(window, at);
        u32 wrong = body->codec == SNAPPY ? snappy(window, at, to + plain, len - plain) : lz4(window, at, to + plain, len - plain);
        if (wrong) {
            __syncwarp();
            for (u32 i = lane; i < len; i += LANES) to[i] = 0;
        }
        for (u32 i = lane; i < body->gap; i += LANES) to[len + i] = 0;
        if (lane == 0) job->checks[index] = wrong;
    }
}
