//! The messages of TensorFlow's `example.proto` and `feature.proto`, for the `prost` crate: the oracle.

use std::collections::BTreeMap;

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct BytesList {
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub(crate) value: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct FloatList {
    #[prost(float, repeated, tag = "1")]
    pub(crate) value: Vec<f32>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Int64List {
    #[prost(int64, repeated, tag = "1")]
    pub(crate) value: Vec<i64>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum Kind {
    #[prost(message, tag = "1")]
    Bytes(BytesList),
    #[prost(message, tag = "2")]
    Float(FloatList),
    #[prost(message, tag = "3")]
    Int64(Int64List),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Feature {
    #[prost(oneof = "Kind", tags = "1, 2, 3")]
    pub(crate) kind: Option<Kind>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Features {
    #[prost(btree_map = "string, message", tag = "1")]
    pub(crate) feature: BTreeMap<String, Feature>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct FeatureList {
    #[prost(message, repeated, tag = "1")]
    pub(crate) feature: Vec<Feature>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct FeatureLists {
    #[prost(btree_map = "string, message", tag = "1")]
    pub(crate) feature_list: BTreeMap<String, FeatureList>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Example {
    #[prost(message, optional, tag = "1")]
    pub(crate) features: Option<Features>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SequenceExample {
    #[prost(message, optional, tag = "1")]
    pub(crate) context: Option<Features>,
    #[prost(message, optional, tag = "2")]
    pub(crate) feature_lists: Option<FeatureLists>,
}

/// An example with these features.
pub(crate) fn example<'a>(features: impl IntoIterator<Item = (&'a str, Kind)>) -> Vec<u8> {
    let features = Some(Features {
        feature: map(features),
    });
    prost::Message::encode_to_vec(&Example { features })
}

pub(crate) fn map<'a>(
    features: impl IntoIterator<Item = (&'a str, Kind)>,
) -> BTreeMap<String, Feature> {
    let feature = |(name, kind): (&str, Kind)| (name.to_owned(), Feature { kind: Some(kind) });
    features.into_iter().map(feature).collect()
}

pub(crate) fn ints(value: impl Into<Vec<i64>>) -> Kind {
    let value = value.into();
    Kind::Int64(Int64List { value })
}

pub(crate) fn floats(value: impl Into<Vec<f32>>) -> Kind {
    let value = value.into();
    Kind::Float(FloatList { value })
}

pub(crate) fn bytes<const N: usize>(value: [&[u8]; N]) -> Kind {
    let value = value.map(<[u8]>::to_vec).to_vec();
    Kind::Bytes(BytesList { value })
}
