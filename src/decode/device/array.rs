//! One column in the memory of a GPU, laid out as Arrow has it.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::{ArrayRef, make_array};
use arrow_buffer::Buffer;
use arrow_data::ArrayData;
use arrow_data::transform::MutableArrayData;
use arrow_schema::{ArrowError, DataType};

use crate::buffer::DeviceBytes;
use crate::cuda::{
    ArrowDevice, ArrowDeviceArray, Dense, Device, DlTensor, DlType, ElementType, Stream,
};
use crate::error::{Error, ErrorKind, Result, counted};

/// An Arrow array whose buffers are in the memory of a GPU; cloning shares them.
///
/// The buffers are finished: no stream has to be waited for. Each is an allocation that begins at a multiple of 256 bytes, or a part of
/// one that begins at a multiple of its elements.
///
/// Kernels that you queue on its buffers have to be done, or to be [told of](Device::used_in), when the last clone of it is dropped.
#[derive(Clone, Debug)]
pub struct DeviceArray {
    gpu: Arc<Device>,
    data_type: DataType,
    len: usize,
    nulls: usize,
    validity: Option<DeviceBytes>,
    buffers: Vec<DeviceBytes>,
    children: Vec<DeviceArray>,
}

impl DeviceArray {
    /// An array without nulls of these buffers, which are those of its type in the order of Arrow, without the validity bitmap.
    pub(crate) fn new(
        gpu: &Arc<Device>,
        data_type: DataType,
        len: usize,
        buffers: Vec<DeviceBytes>,
        children: Vec<DeviceArray>,
    ) -> Self {
        DeviceArray {
            gpu: gpu.clone(),
            data_type,
            len,
            nulls: 0,
            validity: None,
            buffers,
            children,
        }
    }

    /// The same with a validity bitmap, in which `nulls` bits are zero. Without any, the bitmap is dropped.
    #[must_use]
    pub(crate) fn nulls(mut self, bitmap: Option<DeviceBytes>, nulls: usize) -> Self {
        self.validity = bitmap.filter(|_| nulls > 0);
        self.nulls = if self.validity.is_some() { nulls } else { 0 };
        self
    }

    /// Copies of arrays of the host, made in `stream`. Waits for all of them, once.
    ///
    /// # Errors
    /// Those of [`Device::allocate`] and of copies to the device.
    pub(crate) fn upload_all(
        gpu: &Arc<Device>,
        stream: &Stream,
        arrays: &[ArrayRef],
    ) -> Result<Vec<Self>> {
        let arrays = arrays.iter().map(|array| compact(&array.to_data()));
        let arrays = arrays.collect::<Result<Vec<_>>>()?;
        let mut parts = Vec::new();
        for data in &arrays {
            flatten(data, &mut parts);
        }
        let slices: Vec<&[u8]> = parts.iter().map(Buffer::as_slice).collect();
        let mut uploaded = gpu.upload_all(stream, &slices)?.into_iter();
        let rebuilt = arrays.iter().map(|data| rebuild(gpu, data, &mut uploaded));
        Ok(rebuilt.collect())
    }

    /// The GPU that has it.
    pub fn gpu(&self) -> &Arc<Device> {
        &self.gpu
    }

    /// Its type.
    pub fn data_type(&self) -> &DataType {
        &self.data_type
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many elements are null.
    pub fn null_count(&self) -> usize {
        self.nulls
    }

    /// The validity bitmap, as Arrow has it; `None` if nothing is null.
    pub fn validity(&self) -> Option<&DeviceBytes> {
        self.validity.as_ref()
    }

    /// Its other buffers: values; or offsets, and bytes; or, of lists, offsets; or, of dictionaries, indices.
    pub fn buffers(&self) -> &[DeviceBytes] {
        &self.buffers
    }

    /// The arrays below it: the elements of lists, the fields of structs, the entries of dictionaries.
    pub fn children(&self) -> &[DeviceArray] {
        &self.children
    }

    /// Bytes of device memory that its buffers have.
    pub fn bytes(&self) -> u64 {
        let own = self.buffers.iter().chain(&self.validity);
        let own: u64 = own.map(|buffer| buffer.len() as u64).sum();
        own + self.children.iter().map(DeviceArray::bytes).sum::<u64>()
    }

    /// A copy in the memory of the host, checked as Arrow checks what it is given. For tests and small results: the memory
    /// is not pinned, so it is slow.
    ///
    /// # Errors
    /// Those of [`Device::to_host`].
    pub fn to_host(&self) -> Result<ArrayRef> {
        self.data().map(make_array)
    }

    fn data(&self) -> Result<ArrayData> {
        let copy = |bytes: &DeviceBytes| self.gpu.to_host(bytes).map(Buffer::from_vec);
        let mut builder = ArrayData::builder(self.data_type.clone())
            .len(self.len)
            .align_buffers(true);
        if let Some(bitmap) = &self.validity {
            builder = builder.null_bit_buffer(Some(copy(bitmap)?));
        }
        for buffer in &self.buffers {
            builder = builder.add_buffer(copy(buffer)?);
        }
        for child in &self.children {
            builder = builder.add_child_data(child.data()?);
        }
        builder.build().map_err(|error| refused(&error))
    }

    /// The array by Arrow's C device interface, with its memory. What type it has, the caller says by an `ArrowSchema`. Its `release`
    /// waits for the device: [`ArrowDeviceArray::move_to`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] for an array without a buffer; [`ErrorKind::Unsupported`] for views of strings, for which the
    /// interface wants a buffer that Arrow's arrays do not have.
    pub fn export(&self) -> Result<ArrowDeviceArray> {
        self.arrow()?.export()
    }

    pub(super) fn arrow(&self) -> Result<ArrowDevice> {
        if matches!(self.data_type, DataType::Utf8View | DataType::BinaryView) {
            let what = format!("{} by Arrow's C device interface", self.data_type);
            return Err(Error::new(ErrorKind::Unsupported { what: what.into() }));
        }
        let has_validity = !matches!(self.data_type, DataType::Null | DataType::Union(..));
        let validity = has_validity.then(|| self.validity.clone());
        let children = self.children.iter().map(DeviceArray::arrow);
        let mut children = children.collect::<Result<Vec<_>>>()?;
        let dictionary = match self.data_type {
            DataType::Dictionary(..) => children.pop().map(Box::new),
            _ => None,
        };
        let buffers = self.buffers.iter().cloned().map(Some);
        Ok(ArrowDevice {
            length: self.len as u64,
            null_count: Some(self.nulls as u64),
            buffers: validity.into_iter().chain(buffers).collect(),
            children,
            dictionary,
        })
    }

    /// Its values as a dense tensor for `torch.from_dlpack` and its kin, sharing the memory: `[len]`, and for fixed-size lists
    /// `[len, size, …]`. Of `FixedSizeBinary` the bytes, `[len, size]`; see [`tensor_of_rows`](Self::tensor_of_rows).
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for an array with nulls, or of another type than numbers and fixed-size lists of them.
    pub fn tensor(&self) -> Result<DlTensor> {
        if let DataType::FixedSizeBinary(_) = self.data_type {
            return self.tensor_of_rows(DlType::UInt(8));
        }
        let (mut shape, mut leaf) = (vec![self.len as u64], self);
        while let (DataType::FixedSizeList(_, size), Some(child)) =
            (&leaf.data_type, leaf.children.first())
        {
            shape.push(u64::try_from(*size).unwrap_or_default());
            if leaf.nulls > 0 {
                break;
            }
            leaf = child;
        }
        self.tensor_of(&shape)
    }

    /// Each value of `FixedSizeBinary` as a row of elements of this type, little-endian, sharing the memory: `[len, dim]`. Vectors that
    /// Parquet stores as FIXED_LEN_BYTE_ARRAY are had so.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for an array with nulls, or of another type; [`ErrorKind::InvalidOption`] for values that are no whole
    /// number of elements.
    pub fn tensor_of_rows(&self, element: DlType) -> Result<DlTensor> {
        let (DataType::FixedSizeBinary(size), 0, Some(values)) =
            (&self.data_type, self.nulls, self.buffers.first())
        else {
            return Err(match self.data_type {
                DataType::FixedSizeBinary(_) => no_tensor(self),
                _ => unsupported(format!(
                    "rows of {}: only values of FixedSizeBinary are rows of bytes; `tensor` takes numbers, `tensor_of_lists` lists",
                    self.data_type
                )),
            });
        };
        let bytes = u64::from(element.parts().1) / 8;
        let size = u64::try_from(*size).unwrap_or_default();
        let dim = size.checked_div(bytes).unwrap_or_default();
        DlTensor::new(values.clone(), element, &[self.len as u64, dim])
    }

    /// The same as [`tensor`](Self::tensor) in another shape of as many elements.
    ///
    /// # Errors
    /// As [`tensor`](Self::tensor); [`ErrorKind::InvalidOption`] for another number of elements.
    pub fn tensor_of(&self, shape: &[u64]) -> Result<DlTensor> {
        let mut leaf = self;
        while let (DataType::FixedSizeList(..), 0, Some(child)) =
            (&leaf.data_type, leaf.nulls, leaf.children.first())
        {
            leaf = child;
        }
        let element = dl_type(&leaf.data_type).filter(|_| leaf.nulls == 0);
        let (Some(element), Some(values)) = (element, leaf.buffers.first()) else {
            return Err(no_tensor(leaf));
        };
        DlTensor::new(values.clone(), element, shape)
    }

    /// Lists that all have as many items as a dense tensor, sharing the memory: `[len, dims…]`, of lists in lists a dimension each, of lists
    /// and fixed-size lists alike. The lengths are checked on the GPU; waits for it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] for a list of another length, which names the row of this array; [`ErrorKind::Unsupported`] for an array
    /// with nulls, or of something else than lists of numbers; those of the GPU.
    pub fn tensor_of_lists(&self, dims: &[u64]) -> Result<DlTensor> {
        let (values, element) = self.even_values(dims)?;
        DlTensor::new(values, element, &self.even_shape(dims))
    }

    /// The same with elements of another type, in memory of its own; see [`Dense::cast`].
    ///
    /// # Errors
    /// As [`tensor_of_lists`](Self::tensor_of_lists), and those of [`Device::dense`].
    pub fn cast_of_lists(&self, dims: &[u64], to: ElementType) -> Result<DlTensor> {
        let (values, element) = self.even_values(dims)?;
        let from = match element {
            DlType::UInt(8) => ElementType::U8,
            DlType::Int(8) => ElementType::I8,
            DlType::UInt(16) => ElementType::U16,
            DlType::Int(16) => ElementType::I16,
            DlType::Int(32) => ElementType::I32,
            DlType::Float(16) => ElementType::F16,
            DlType::Float(32) => ElementType::F32,
            other => {
                return Err(unsupported(format!(
                    "a cast of {other:?}: of integers up to 32 bits and of floats of 16 and 32; `tensor_of_lists` takes it as it is"
                )));
            }
        };
        let to_element = match to {
            ElementType::U8 => DlType::UInt(8),
            ElementType::F16 => DlType::Float(16),
            ElementType::BF16 => DlType::BFloat16,
            _ => DlType::Float(32),
        };
        let shape = self.even_shape(dims);
        let tensor = self.gpu.dense(&Dense::cast(&shape, from, to), &values)?;
        DlTensor::new(tensor, to_element, &shape)
    }

    fn even_shape(&self, dims: &[u64]) -> Vec<u64> {
        std::iter::once(self.len as u64)
            .chain(dims.iter().copied())
            .collect()
    }

    /// The numbers in lists of these lengths.
    fn even_values(&self, dims: &[u64]) -> Result<(DeviceBytes, DlType)> {
        // How many lists of this depth a row has.
        let (mut leaf, mut lists) = (self, 1u64);
        for &dim in dims {
            if leaf.nulls > 0 {
                return Err(no_tensor(leaf));
            }
            let row = |list: u64| list.checked_div(lists).unwrap_or(0);
            let another = |list: u64, items: u64| {
                let what = format!(
                    "lists of {dim} items each: row {} of the batch has one of {items}; where lengths differ, take `buffers` (offsets) and `children`",
                    row(list)
                );
                Error::new(ErrorKind::InvalidOption { what: what.into() })
            };
            let width = match leaf.data_type {
                DataType::List(_) => 4,
                DataType::LargeList(_) => 8,
                DataType::FixedSizeList(_, size) => match u64::try_from(size).unwrap_or(0) {
                    size if size == dim => 0,
                    size => return Err(another(0, size)),
                },
                _ => return Err(no_lists(leaf, dims.len())),
            };
            if let (1.., Some(offsets)) = (width, leaf.buffers.first()) {
                let uneven = self.gpu.uneven(offsets, width, leaf.len as u64, dim)?;
                if let Some(uneven) = uneven {
                    return Err(another(uneven.list, uneven.items));
                }
            }
            let Some(child) = leaf.children.first() else {
                return Err(no_lists(leaf, dims.len()));
            };
            if child.len as u64 != (leaf.len as u64).saturating_mul(dim) {
                return Err(unsupported(format!(
                    "a tensor of {}: it has items that are in none of its lists; `to_host` gives it without",
                    leaf.data_type
                )));
            }
            lists = lists.saturating_mul(dim);
            leaf = child;
        }
        let element = dl_type(&leaf.data_type).filter(|_| leaf.nulls == 0);
        match (element, leaf.buffers.first()) {
            (Some(element), Some(values)) => Ok((values.clone(), element)),
            _ => Err(no_tensor(leaf)),
        }
    }
}

/// The same elements from the start of their buffers: a copy, where they do not begin there.
fn compact(data: &ArrayData) -> Result<ArrayData> {
    fn begins_at_the_start(data: &ArrayData) -> bool {
        data.offset() == 0 && data.child_data().iter().all(begins_at_the_start)
    }
    if begins_at_the_start(data) {
        return Ok(data.clone());
    }
    rows_of(data, 0..data.len())
}

/// A copy of some rows, which has no bytes of others but for the values of dictionaries.
pub(super) fn rows_of(data: &ArrayData, rows: Range<usize>) -> Result<ArrayData> {
    let mut copy = MutableArrayData::new(vec![data], false, rows.len());
    copy.try_extend(0, rows.start, rows.end)
        .map_err(|error| refused(&error))?;
    Ok(copy.freeze())
}

/// All buffers, in the order in which [`rebuild`] takes them.
fn flatten(data: &ArrayData, parts: &mut Vec<Buffer>) {
    if let Some(nulls) = data.nulls() {
        parts.push(nulls.inner().sliced());
    }
    parts.extend(data.buffers().iter().cloned());
    for child in data.child_data() {
        flatten(child, parts);
    }
}

fn rebuild(
    gpu: &Arc<Device>,
    data: &ArrayData,
    parts: &mut impl Iterator<Item = DeviceBytes>,
) -> DeviceArray {
    let validity = data.nulls().and_then(|_| parts.next());
    let buffers = parts.by_ref().take(data.buffers().len()).collect();
    let children = data.child_data().iter();
    let children = children.map(|child| rebuild(gpu, child, parts)).collect();
    let (data_type, len) = (data.data_type().clone(), data.len());
    DeviceArray::new(gpu, data_type, len, buffers, children).nulls(validity, data.null_count())
}

fn dl_type(data_type: &DataType) -> Option<DlType> {
    Some(match data_type {
        DataType::Int8 => DlType::Int(8),
        DataType::Int16 => DlType::Int(16),
        DataType::Int32 => DlType::Int(32),
        DataType::Int64 => DlType::Int(64),
        DataType::UInt8 => DlType::UInt(8),
        DataType::UInt16 => DlType::UInt(16),
        DataType::UInt32 => DlType::UInt(32),
        DataType::UInt64 => DlType::UInt(64),
        DataType::Float16 => DlType::Float(16),
        DataType::Float32 => DlType::Float(32),
        DataType::Float64 => DlType::Float(64),
        _ => return None,
    })
}

fn unsupported(what: String) -> Error {
    Error::new(ErrorKind::Unsupported { what: what.into() })
}

/// Why an array is no tensor, and what is to be had instead.
fn no_tensor(array: &DeviceArray) -> Error {
    let kind = &array.data_type;
    let has_elements = dl_type(kind).is_some() || matches!(kind, DataType::FixedSizeBinary(_));
    let what = match kind {
        _ if array.nulls > 0 && has_elements => {
            let nulls = counted(array.nulls as u64, "null");
            format!(
                "it has {nulls}, for which a tensor has no place; `validity` says which, and the values beside them are in `buffers`"
            )
        }
        DataType::List(_) | DataType::LargeList(_) => match array.nulls {
            0 => "its lists may differ in length; if they do not, `tensor_of_lists` takes them".into(),
            nulls => format!(
                "it has {}, for which a tensor has no place; `validity` says which, and the items are in `children`",
                counted(nulls as u64, "null")
            ),
        },
        DataType::FixedSizeList(..) => format!(
            "it has {}, for which a tensor has no place; `validity` says which, and the items are in `children`",
            counted(array.nulls as u64, "null")
        ),
        DataType::Utf8
        | DataType::LargeUtf8
        | DataType::Binary
        | DataType::LargeBinary
        | DataType::Utf8View
        | DataType::BinaryView => {
            "its values may differ in length; offsets and bytes are in `buffers`, and `export` gives it as Arrow has it".into()
        }
        DataType::Dictionary(..) => {
            "it has indices of a dictionary; they are in `buffers`, what they are of in `children`".into()
        }
        DataType::Struct(_) | DataType::Map(..) => "its fields are in `children`".into(),
        DataType::Boolean => "it has bits, and DLPack bytes; they are in `buffers`".into(),
        _ => "DLPack has no such type; its bytes are in `buffers`".into(),
    };
    unsupported(format!("a tensor of {kind}: {what}"))
}

/// Why an array is no lists of lists as deep as that.
fn no_lists(array: &DeviceArray, depth: usize) -> Error {
    unsupported(format!(
        "lists of {depth} dimensions: in that depth is {}, which is no list; there is to be a length for each list in another one",
        array.data_type
    ))
}

/// What Arrow refuses of what a kernel made: a bug of this crate.
pub(super) fn refused(error: &ArrowError) -> Error {
    Error::new(ErrorKind::Malformed {
        format: "Arrow",
        part: None,
        what: format!("what the device made: {error}").into(),
    })
}
