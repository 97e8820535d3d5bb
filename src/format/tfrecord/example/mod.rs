//! The wire format of `tf.train.Example` and `tf.train.SequenceExample`, walked without building messages.
//!
//! The messages, from TensorFlow's `example.proto` and `feature.proto`:
//!
//! ```text
//! Example         { Features features = 1; }
//! SequenceExample { Features context = 1; FeatureLists feature_lists = 2; }
//! Features        { map<string, Feature> feature = 1; }
//! FeatureLists    { map<string, FeatureList> feature_list = 1; }
//! FeatureList     { repeated Feature feature = 1; }
//! Feature         { oneof { BytesList = 1; FloatList = 2; Int64List = 3; } }
//! BytesList       { repeated bytes value = 1; }
//! FloatList       { repeated float value = 1; }   // packed or not
//! Int64List       { repeated int64 value = 1; }   // packed or not
//! ```
//!
//! What the encoding rules of protobuf ask of a reader is done here: fields in any order, unknown ones skipped, a message
//! field that occurs twice merged, the last of several members of a `oneof`, packed and unpacked values mixed. Where readers
//! differ, this one is strict: a known field of another wire type, and a varint of more than 64 bits, are errors.

mod encode;
mod lists;
mod walk;
mod wire;

pub(crate) use encode::{
    LEN_1, LEN_2, entry_len, field_len, packed_len, put_bytes_list, put_entry, put_field,
    put_float_list, put_int64_list, varint_len,
};
pub(crate) use lists::{bytes_values, count, push_floats, push_int64s};
pub(crate) use walk::{Kind, Pieces, Place, check_feature, feature, steps, walk};
pub(crate) use wire::WireError;
