//! A file to show.

use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, BinaryArray, Float32Array, Int64Array, RecordBatch};
use feedwater::tfrecord::{ExampleEncoder, ExampleSchema, Feature, ValueType, Writer};

/// Pixels of an image, of three bytes each.
pub(crate) const HEIGHT: usize = 16;
pub(crate) const WIDTH: usize = 24;

const IMAGES: usize = 300;

/// What its examples have.
pub(crate) fn schema() -> ExampleSchema {
    ExampleSchema::new()
        .with(Feature::scalar("image", ValueType::Binary).required())
        .with(Feature::scalar("label", ValueType::Int64).required())
        .with(Feature::scalar("weight", ValueType::Float32))
}

/// Images of stripes.
pub(crate) fn write(path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let image = |number: usize| -> Vec<u8> {
        (0..HEIGHT * WIDTH * 3)
            .map(|at| (at * (number + 1) / 7) as u8)
            .collect()
    };
    let images: Vec<_> = (0..IMAGES).map(image).collect();
    let images = BinaryArray::from_iter_values(&images);
    let labels = Int64Array::from_iter_values((0..IMAGES as i64).map(|number| number % 10));
    let weights = (0..IMAGES).map(|number| (number % 3 > 0).then_some(number as f32 / 2.0));
    let weights = Float32Array::from_iter(weights);
    let batch = RecordBatch::try_from_iter([
        ("image", Arc::new(images) as ArrayRef),
        ("label", Arc::new(labels)),
        ("weight", Arc::new(weights)),
    ])?;
    let mut encoder = ExampleEncoder::new(&batch)?;
    let mut writer = Writer::create(path)?;
    let mut record = Vec::new();
    for row in 0..encoder.rows() {
        record.clear();
        encoder.encode(row, &mut record)?;
        writer.write(&record)?;
    }
    writer.commit()?;
    Ok(())
}
