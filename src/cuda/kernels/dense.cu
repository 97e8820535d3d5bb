// Copies into a dense tensor: strided, gathered, transposed, and with a change of the element's type.
//
// One thread for each element of the output, whose order is row-major over up to four dimensions. Rounding is to the
// nearest, ties to even, done on bits, so that a processor gives the same.
#include "cast.cuh"

#define THREADS 256

enum Mode { COPY = 0, CAST = 1 };

struct DenseJob {
    const u8 *source;
    u8 *output;
    u64 shape[4];    // of the output
    u64 strides[4];  // of the source, in bytes
    const u64 *rows;  // which row of the source each of the first dimension is; null: the same
    u64 source_rows;  // how many there are
    u64 *error;       // becomes the least place in `rows` that names a row that is not there
    const float *scale;  // for each index of the dimension `channel`; null: no change
    const float *bias;
    u32 channel;
    u32 mode;
    u32 size;  // COPY: bytes of an element, 1, 2, 4 or 8
    u32 from;  // CAST
    u32 to;
};
static_assert(sizeof(DenseJob) == 144);  // what `Device::dense` in dense.rs writes

KERNEL(dense, THREADS)(const __grid_constant__ DenseJob given) {
    const DenseJob *job = &given;
    u64 count = job->shape[0] * job->shape[1] * job->shape[2] * job->shape[3];
    for (u64 index = thread_number(); index < count; index += thread_count()) {
        u64 d = index % job->shape[3], rest = index / job->shape[3];
        u64 c = rest % job->shape[2];
        rest /= job->shape[2];
        u64 b = rest % job->shape[1], a = rest / job->shape[1], row = a;
        if (job->rows) {
            row = job->rows[a];
            if (row >= job->source_rows) {
                atomicMin(job->error, a);
                continue;
            }
        }
        const u8 *from =
            job->source + row * job->strides[0] + b * job->strides[1] + c * job->strides[2] + d * job->strides[3];
        if (job->mode == COPY) {
            switch (job->size) {
            case 1: job->output[index] = *from; break;
            case 2: ((u16 *)job->output)[index] = *(const u16 *)from; break;
            case 4: ((u32 *)job->output)[index] = *(const u32 *)from; break;
            default: ((u64 *)job->output)[index] = *(const u64 *)from;
            }
            continue;
        }
        float value = load(from, job->from);
        u64 channel = job->channel == 0 ? a : job->channel == 1 ? b : job->channel == 2 ? c : d;
        if (job->scale) value = value * job->scale[channel];
        if (job->bias) value = value + job->bias[channel];
        store(job->output, index, job->to, value);
    }
}
