// Columns of `tf.train.Example`s.
//
// index   a thread for each record walks the tags, and notes where the list of each wanted feature is
// counts  how many values, how many bytes; that all of them are right
// emit    the values to where sums of those say
// copy    bytes of bytes features, by the output
// tensor  pixels of bytes features as numbers
//
// Only the form that writers write is walked. What has another (unpacked or merged lists, unknown fields, a name twice) is noted as odd,
// and comes again in that form; what is no example at all, or not what is asked for, is a fault. Kernels only detect.
#include "cast.cuh"
#include "records.cuh"

#define THREADS 128
#define COPY_THREADS 128
#define COPY_TILE 4096
// A lane does lists of so many bytes by itself; a warp does longer ones together.
#define SHORT 64

// With the number of blocks of a multiprocessor said, the assembler does not spill registers to have more of them.
#define WIDE_KERNEL(name) extern "C" __global__ void __launch_bounds__(THREADS, 6) name

// As the keys of the lists have them; then a feature without a list, and a record that is odd.
enum Kind { MISSING = 0, BYTES = 1, FLOATS = 2, INTEGERS = 3, BLANK = 4, ODD = 5 };
enum Output { OUT_F32 = 0, OUT_I64 = 1, OUT_I32 = 2, OUT_U8 = 3, OUT_BINARY = 4, OUT_UTF8 = 5 };
enum Absent { ABSENT_NULL = 0, ABSENT_FAULT = 1, ABSENT_DEFAULT = 2 };

#define NONE 0xffffffffu
#define KIND_SHIFT 56

// Packed values; or, of bytes, all of the list.
struct Slot {
    u64 data;
    u64 len_and_kind;
};
static_assert(sizeof(Slot) == 16);  // `SLOT` in example.rs

struct Feature {
    const u8 *name;
    u32 name_len;
    u32 kind;
    u32 output;
    u32 absent;
    u32 variable;    // 1: any number of values
    u32 large;       // 1: offsets of 64 bits
    u64 count;       // values, of one that is not variable
    u64 exact;       // bytes that each value has to have; NO_LENGTH: any
    u32 count_row;   // of the sums: how many values; NONE: always as many
    u32 bytes_row;   // of the sums: how many bytes; NONE: not of bytes
    u64 default_count;
    u64 default_bytes;             // all of them, once
    const u8 *defaults;            // values as in the output; of bytes, all of them
    const u64 *default_offsets;    // of bytes: where each begins, and the end
    // What is made. Null: not wanted.
    u8 *values;
    u8 *offsets;       // of lists
    u8 *ends;          // of bytes: where each begins, and the end
    u64 *addresses;    // of bytes: of each value
    u32 *validity;
};
static_assert(sizeof(Feature) == 128);  // `FEATURE` there

#define NO_LENGTH 0xffffffffffffffffull

struct Status {
    u64 fault;  // the least record that is one
    u64 odd;    // how many are
};
static_assert(sizeof(Status) == 16);  // what `Device::examples` there reads

struct ExampleJob {
    const Record *records;
    u64 count;
    const Feature *features;
    u64 feature_count;
    const u32 *table;  // numbers of features by the hash of their names; NONE: free
    u64 table_mask;
    Slot *slots;   // feature by feature
    u64 *odd;      // numbers of odd records, in any order
    Status *status;
    u64 *sums;         // rows of `count` numbers
    const u64 *firsts;  // rows of `count` + 1
    u64 *nulls;         // of each feature
};
static_assert(sizeof(ExampleJob) == 96);  // what it writes

static __device__ u8 byte(u64 at) { return *(const u8 *)at; }

// A varint of at most 64 bits that ends before `end`; `at` is behind it then.
static __device__ bool varint(u64 &at, u64 end, u64 *value) {
    u64 result = 0;
#pragma unroll 1
    for (u32 i = 0; i < 10 && at < end; i++) {
        u8 next = byte(at++);
        if (i == 9 && next > 1) return false;
        result |= (u64)(next & 127) << (7 * i);
        if (next < 128) {
            *value = result;
            return true;
        }
    }
    return false;
}

// The key, and a length that is not past the end; `at` is behind it then.
static __device__ bool field(u64 &at, u64 end, u8 key, u64 *len) {
    if (at >= end || byte(at) != key) return false;
    at++;
    return varint(at, end, len) && *len <= end - at;
}

static __device__ bool same(const u8 *name, u64 at, u32 len) {
#pragma unroll 1
    for (u32 i = 0; i < len; i++)
        if (name[i] != byte(at + i)) return false;
    return true;
}

// The number of a feature; NONE if it is not wanted.
static __device__ u32 find(const ExampleJob *job, u32 guess, u64 name, u64 len) {
    if (guess < job->feature_count) {
        const Feature *feature = &job->features[guess];
        if (feature->name_len == len && same(feature->name, name, (u32)len)) return guess;
    }
    u32 hash = 0x811c9dc5u;
#pragma unroll 1
    for (u64 i = 0; i < len; i++) hash = (hash ^ byte(name + i)) * 0x01000193u;
#pragma unroll 1
    for (u64 slot = hash;; slot++) {
        u32 number = job->table[slot & job->table_mask];
        if (number == NONE) return NONE;
        const Feature *feature = &job->features[number];
        if (feature->name_len == len && same(feature->name, name, (u32)len)) return number;
    }
}

// What a feature is, in the form that writers write.
static __device__ bool list_of(u64 at, u64 end, Slot *slot) {
    if (at == end) {
        slot->len_and_kind = (u64)BLANK << KIND_SHIFT;
        return true;
    }
    u8 key = byte(at++);
    u64 len;
    if (key != 0x0a && key != 0x12 && key != 0x1a) return false;
    if (!varint(at, end, &len) || len != end - at) return false;
    u64 kind = key >> 3;
    // The values of the packed field, if there is one.
    if (kind != BYTES && len > 0 && (!field(at, end, 0x0a, &len) || len != end - at)) return false;
    slot->data = at;
    slot->len_and_kind = kind << KIND_SHIFT | len;
    return true;
}

static __device__ bool walk(const ExampleJob *job, u64 record) {
    u64 at = job->records[record].data, end = at + job->records[record].len;
    u32 guess = 0;
#pragma unroll 1
    while (at < end) {
        u64 len;
        if (!field(at, end, 0x0a, &len)) return false;
        u64 map_end = at + len;
#pragma unroll 1
        while (at < map_end) {
            if (!field(at, map_end, 0x0a, &len)) return false;
            u64 entry_end = at + len, name_len;
            if (!field(at, entry_end, 0x0a, &name_len)) return false;
            u64 name = at;
            at += name_len;
            if (!field(at, entry_end, 0x12, &len) || len != entry_end - at) return false;
            u32 number = find(job, guess, name, name_len);
            if (number == NONE) {
                // One that is not ASCII has to be looked at more closely.
                for (u64 i = 0; i < name_len; i++)
                    if (byte(name + i) >= 128) return false;
            } else {
                Slot *slot = &job->slots[number * job->count + record], found = {0, 0};
                // One that was there already has to be looked at before it is replaced.
                if (slot->len_and_kind != 0 || !list_of(at, entry_end, &found)) return false;
                *slot = found;
                guess = number + 1;
            }
            at = entry_end;
        }
    }
    return true;
}

WIDE_KERNEL(example_index)(const __grid_constant__ ExampleJob given) {
    const ExampleJob *job = &given;
    for (u64 record = thread_number(); record < job->count; record += thread_count()) {
        for (u64 f = 0; f < job->feature_count; f++) {
            Slot none = {0, 0};
            job->slots[f * job->count + record] = none;
        }
        if (walk(job, record)) continue;
        for (u64 f = 0; f < job->feature_count; f++)
            job->slots[f * job->count + record].len_and_kind = (u64)ODD << KIND_SHIFT;
        job->odd[atomicAdd(&job->status->odd, 1ull)] = record;
    }
}

static __device__ bool fits(u32 output, i64 value) {
    switch (output) {
    case OUT_I32: return value == (int)value;
    case OUT_U8: return value == (u8)value;
    default: return true;
    }
}

// Whether the byte at `i` of a text of `len` bytes is where it can be in UTF-8.
static __device__ bool utf8_at(u64 data, u64 i, u64 len) {
    u8 lead = byte(data + i);
    if (lead < 0x80) return true;
    if (lead < 0xc0) {
        // One that follows: of the nearest that does not.
#pragma unroll 1
        for (u32 back = 1; back <= 3 && back <= i; back++) {
            u8 before = byte(data + i - back);
            if (before >= 0xc0) return back < (before < 0xe0 ? 2 : before < 0xf0 ? 3 : 4);
            if (before < 0x80) return false;
        }
        return false;
    }
    if (lead < 0xc2 || lead > 0xf4) return false;
    u32 more = lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3;
    if (len - i <= more) return false;
    u8 second = byte(data + i + 1);
    u8 low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    u8 high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    if (second < low || second > high) return false;
    for (u32 k = 2; k <= more; k++)
        if ((byte(data + i + k) & 0xc0) != 0x80) return false;
    return true;
}

static __device__ bool utf8(u64 data, u64 len) {
#pragma unroll 1
    for (u64 i = 0; i < len; i++)
        if (!utf8_at(data, i, len)) return false;
    return true;
}

// The varint that ends at `i` of a run whose bytes before are of others; false if it has more than 64 bits.
static __device__ bool varint_before(u64 data, u64 i, u64 *value) {
    u64 result = byte(data + i);
    u32 bytes = 1;
#pragma unroll 1
    for (; bytes <= 10 && bytes <= i; bytes++) {
        u8 before = byte(data + i - bytes);
        if (before < 128) break;
        if (bytes == 10) return false;
        result = result << 7 | (before & 127);
    }
    if (bytes == 10 && byte(data + i) > 1) return false;
    *value = result;
    return true;
}

struct Found {
    u64 count;
    u64 bytes;
    bool fault;
};

static __device__ Found count_integers(const Feature *feature, u64 at, u64 len) {
    Found found = {0, 0, false};
    u64 end = at + len, value;
#pragma unroll 1
    while (at < end) {
        if (!varint(at, end, &value) || !fits(feature->output, (i64)value)) {
            found.fault = true;
            break;
        }
        found.count++;
    }
    return found;
}

static __device__ Found count_bytes(const Feature *feature, u64 at, u64 len) {
    Found found = {0, 0, false};
    u64 end = at + len, value;
#pragma unroll 1
    while (at < end) {
        if (!field(at, end, 0x0a, &value) || (feature->exact != NO_LENGTH && value != feature->exact) ||
            (feature->output == OUT_UTF8 && !utf8(at, value))) {
            found.fault = true;
            break;
        }
        found.count++;
        found.bytes += value;
        at += value;
    }
    return found;
}

// All lanes: the integers of one long run.
static __device__ Found count_long(const Feature *feature, u64 data, u64 len) {
    u32 lane = threadIdx.x % LANES;
    u64 count = 0;
    bool fault = false;
#pragma unroll 1
    for (u64 first = 0; first < len; first += LANES) {
        u64 i = first + lane, value;
        bool ends = i < len && byte(data + i) < 128;
        if (ends && (!varint_before(data, i, &value) || !fits(feature->output, (i64)value))) fault = true;
        if (i + 1 == len && !ends) fault = true;
        count += __popc(__ballot_sync(ALL_LANES, ends));
    }
    Found found = {count, 0, __any_sync(ALL_LANES, fault) != 0};
    return found;
}

WIDE_KERNEL(example_counts)(const __grid_constant__ ExampleJob given) {
    const ExampleJob *job = &given;
    u32 lane = threadIdx.x % LANES;
    u64 groups = (job->count + LANES - 1) / LANES, warps = thread_count() / LANES;
    for (u64 at = thread_number() / LANES; at < groups * job->feature_count; at += warps) {
        const Feature *feature = &job->features[at / groups];
        u64 record = at % groups * LANES + lane;
        Found found = {0, 0, false};
        u64 data = 0, len = 0, kind = ODD;
        if (record < job->count) {
            Slot slot = job->slots[at / groups * job->count + record];
            data = slot.data;
            kind = slot.len_and_kind >> KIND_SHIFT;
            len = slot.len_and_kind & ((1ull << KIND_SHIFT) - 1);
        }
        bool absent = kind == MISSING || kind == BLANK, known = kind == feature->kind;
        u32 longs = __ballot_sync(ALL_LANES, known && kind == INTEGERS && len > SHORT);
        if (kind == ODD) {
            // Counted when it comes again.
        } else if (absent) {
            if (feature->absent == ABSENT_FAULT) found.fault = true;
            if (feature->absent == ABSENT_DEFAULT) {
                found.count = feature->variable ? feature->default_count : feature->count;
                u64 times = feature->variable || feature->default_count != 1 ? 1 : feature->count;
                found.bytes = times * feature->default_bytes;
            }
            if (feature->absent == ABSENT_NULL && !feature->variable) found.count = feature->count;
        } else if (!known) {
            found.fault = true;
        } else if (kind == FLOATS) {
            found.count = len / 4;
            found.fault = len % 4 != 0;
        } else if (kind == BYTES) {
            found = count_bytes(feature, data, len);
        } else if (len <= SHORT) {
            found = count_integers(feature, data, len);
        }
        while (longs) {
            u32 of = __ffs(longs) - 1;
            longs &= longs - 1;
            Found together =
                count_long(feature, __shfl_sync(ALL_LANES, data, of), __shfl_sync(ALL_LANES, len, of));
            if (lane == of) found = together;
        }
        if (kind != ODD && !feature->variable && found.count != feature->count) found.fault = true;
        u32 nulls = __ballot_sync(ALL_LANES, absent && feature->absent == ABSENT_NULL);
        if (lane == 0 && nulls) atomicAdd(&job->nulls[at / groups], (u64)__popc(nulls));
        if (record >= job->count) continue;
        if (found.fault) atomicMin(&job->status->fault, record);
        if (feature->count_row != NONE) job->sums[feature->count_row * job->count + record] = found.count;
        if (feature->bytes_row != NONE) job->sums[feature->bytes_row * job->count + record] = found.bytes;
    }
}

static __device__ void put_offset(const Feature *feature, u8 *offsets, u64 index, u64 value) {
    if (feature->large)
        ((u64 *)offsets)[index] = value;
    else
        ((u32 *)offsets)[index] = (u32)value;
}

static __device__ void put_integer(const Feature *feature, u64 index, u64 value) {
    switch (feature->output) {
    case OUT_I64: ((u64 *)feature->values)[index] = value; break;
    case OUT_I32: ((u32 *)feature->values)[index] = (u32)value; break;
    default: feature->values[index] = (u8)value;
    }
}

// Four bytes at any address. The words that they lie in are read: a checksum, or as many bytes, follows all values.
static __device__ u32 load32(u64 at) {
    const u32 *words = (const u32 *)(at & ~3ull);
    u32 shift = at % 4 * 8;
    return shift == 0 ? words[0] : __funnelshift_r(words[0], words[1], shift);
}

static __device__ void put_bytes(const Feature *feature, u64 index, u64 from, u64 address) {
    put_offset(feature, feature->ends, index, from);
    feature->addresses[index] = address;
}

static __device__ void put_default(const Feature *feature, u64 to, u64 from) {
    u64 count = feature->variable ? feature->default_count : feature->count;
#pragma unroll 1
    for (u64 i = 0; i < count; i++) {
        u64 of = feature->default_count == 1 ? 0 : i;
        switch (feature->kind) {
        case FLOATS: ((u32 *)feature->values)[to + i] = ((const u32 *)feature->defaults)[of]; break;
        case INTEGERS: put_integer(feature, to + i, ((const u64 *)feature->defaults)[of]); break;
        default:
            put_bytes(feature, to + i, from, (u64)feature->defaults + feature->default_offsets[of]);
            from += feature->default_offsets[of + 1] - feature->default_offsets[of];
        }
    }
}

// What fills the place of nulls.
static __device__ void put_blank(const Feature *feature, u64 to, u64 from) {
#pragma unroll 1
    for (u64 i = 0; i < feature->count; i++) {
        if (feature->kind == FLOATS)
            ((u32 *)feature->values)[to + i] = 0;
        else if (feature->kind == INTEGERS)
            put_integer(feature, to + i, 0);
        else
            put_bytes(feature, to + i, from, 0);
    }
}

WIDE_KERNEL(example_emit)(const __grid_constant__ ExampleJob given) {
    const ExampleJob *job = &given;
    u32 lane = threadIdx.x % LANES;
    u64 groups = (job->count + LANES - 1) / LANES, warps = thread_count() / LANES;
    for (u64 at = thread_number() / LANES; at < groups * job->feature_count; at += warps) {
        const Feature *feature = &job->features[at / groups];
        u64 group = at % groups, record = group * LANES + lane;
        u64 data = 0, len = 0, kind = ODD, to = 0, from = 0;
        if (record < job->count) {
            Slot slot = job->slots[at / groups * job->count + record];
            data = slot.data;
            kind = slot.len_and_kind >> KIND_SHIFT;
            len = slot.len_and_kind & ((1ull << KIND_SHIFT) - 1);
            to = record * feature->count;
            if (feature->count_row != NONE) to = job->firsts[feature->count_row * (job->count + 1) + record];
            if (feature->bytes_row != NONE) from = job->firsts[feature->bytes_row * (job->count + 1) + record];
            if (feature->offsets) put_offset(feature, feature->offsets, record, to);
            if (record + 1 == job->count) {
                // Ends behind the last.
                u64 values = job->count * feature->count;
                if (feature->count_row != NONE)
                    values = job->firsts[feature->count_row * (job->count + 1) + job->count];
                if (feature->offsets) put_offset(feature, feature->offsets, job->count, values);
                if (feature->ends) {
                    u64 bytes = job->firsts[feature->bytes_row * (job->count + 1) + job->count];
                    put_offset(feature, feature->ends, values, bytes);
                }
            }
        }
        bool absent = kind == MISSING || kind == BLANK, packed = kind == FLOATS || kind == INTEGERS;
        u32 valid = __ballot_sync(ALL_LANES, kind != ODD && !absent);
        if (feature->validity && lane == 0) feature->validity[group] = valid;
        u32 longs = __ballot_sync(ALL_LANES, packed && len > SHORT);
        if (absent && feature->absent == ABSENT_DEFAULT) {
            put_default(feature, to, from);
        } else if (absent && !feature->variable) {
            put_blank(feature, to, from);
        } else if (kind == BYTES) {
            u64 end = data + len, value;
#pragma unroll 1
            while (data < end && field(data, end, 0x0a, &value)) {
                put_bytes(feature, to++, from, data);
                from += value;
                data += value;
            }
        } else if (kind == FLOATS && len <= SHORT) {
            for (u64 i = 0; i < len / 4; i++) ((u32 *)feature->values)[to + i] = load32(data + 4 * i);
        } else if (kind == INTEGERS && len <= SHORT) {
            u64 end = data + len, value;
#pragma unroll 1
            while (data < end && varint(data, end, &value)) put_integer(feature, to++, value);
        }
        while (longs) {
            u32 of = __ffs(longs) - 1;
            longs &= longs - 1;
            u64 run = __shfl_sync(ALL_LANES, data, of), bytes = __shfl_sync(ALL_LANES, len, of);
            u64 first = __shfl_sync(ALL_LANES, to, of);
            if (feature->kind == FLOATS) {
                for (u64 i = lane; i < bytes / 4; i += LANES)
                    ((u32 *)feature->values)[first + i] = load32(run + 4 * i);
                continue;
            }
#pragma unroll 1
            for (u64 begin = 0; begin < bytes; begin += LANES) {
                u64 i = begin + lane, value;
                bool ends = i < bytes && byte(run + i) < 128;
                u32 all = __ballot_sync(ALL_LANES, ends);
                if (ends && varint_before(run, i, &value))
                    put_integer(feature, first + __popc(all & ((1u << lane) - 1)), value);
                first += __popc(all);
            }
        }
    }
}

// The values of a feature.
struct Copy {
    const u8 *ends;  // of the values in the output
    const u64 *addresses;
    u64 count;
    u64 bytes;  // of the output, at least one
    u8 *output;
    u64 first;  // its first tile of the output among those of all
};
static_assert(sizeof(Copy) == 48);  // `COPY` there

struct CopyJob {
    const Copy *copies;
    u64 count;
    u64 tiles;
    u32 large;
    u32 unused;
};
static_assert(sizeof(CopyJob) == 32);  // what is written there

static __device__ u64 begin_of(const Copy *copy, u32 large, u64 index) {
    return large ? ((const u64 *)copy->ends)[index] : ((const u32 *)copy->ends)[index];
}

// Bytes of values beside each other, of all features: a block for each part of the output, so that one long value is the work of many.
KERNEL(example_copy, COPY_THREADS)(const __grid_constant__ CopyJob given) {
    const CopyJob *job = &given;
    u32 large = job->large;
    for (u64 tile = blockIdx.x; tile < job->tiles; tile += gridDim.x) {
        // The last one whose tiles begin at or before it.
        u64 low = 0, high = job->count;
        while (high - low > 1) {
            u64 middle = low + (high - low) / 2;
            if (job->copies[middle].first <= tile)
                low = middle;
            else
                high = middle;
        }
        const Copy *copy = &job->copies[low];
        u64 begin = (tile - copy->first) * COPY_TILE, end = begin + COPY_TILE < copy->bytes ? begin + COPY_TILE : copy->bytes;
        // The last value that begins at or before it.
        low = 0;
        high = copy->count;
        while (high - low > 1) {
            u64 middle = low + (high - low) / 2;
            if (begin_of(copy, large, middle) <= begin)
                low = middle;
            else
                high = middle;
        }
        u64 value = low, next = begin_of(copy, large, value + 1);
        for (u64 at = begin + threadIdx.x; at < end; at += COPY_THREADS) {
            while (next <= at) next = begin_of(copy, large, ++value + 1);
            copy->output[at] = byte(copy->addresses[value] + (at - begin_of(copy, large, value)));
        }
    }
}

// The pixels of a feature.
struct Tensor {
    const u64 *addresses;  // of the bytes of each record
    u64 count;             // of records
    u8 *output;
    u64 shape[3];    // of one record's part
    u64 strides[3];  // of its source, in bytes
    const float *scale;  // for each index of the dimension `channel`; null: no change
    const float *bias;
    u32 channel;
    u32 size;  // bytes of an element of the source
    u32 from;
    u32 to;
};
static_assert(sizeof(Tensor) == 104);  // `TENSOR` there; the most of it by `PerRow::describe` in dense.rs

struct TensorJob {
    const Tensor *tensors;
    u64 count;
};
static_assert(sizeof(TensorJob) == 16);  // what is written there

KERNEL(example_tensor, THREADS)(const __grid_constant__ TensorJob given) {
    const TensorJob *job = &given;
    for (u64 number = 0; number < job->count; number++) {
        // A copy: else all of it is read again behind each store.
        Tensor tensor = job->tensors[number];
        u64 each = tensor.shape[0] * tensor.shape[1] * tensor.shape[2], count = tensor.count * each;
        for (u64 index = thread_number(); index < count; index += thread_count()) {
            u64 record = index / each, rest = index % each;
            u64 c = rest % tensor.shape[2];
            rest /= tensor.shape[2];
            u64 b = rest % tensor.shape[1], a = rest / tensor.shape[1];
            const u8 *at = (const u8 *)tensor.addresses[record] + a * tensor.strides[0] + b * tensor.strides[1] +
                           c * tensor.strides[2];
            // They are at any address.
            u32 bits = 0;
            for (u32 i = 0; i < tensor.size; i++) bits |= (u32)at[i] << (8 * i);
            float value = load((const u8 *)&bits, tensor.from);
            u64 channel = tensor.channel == 0 ? a : tensor.channel == 1 ? b : c;
            if (tensor.scale) value = value * tensor.scale[channel];
            if (tensor.bias) value = value + tensor.bias[channel];
            store(tensor.output, index, tensor.to, value);
        }
    }
}
