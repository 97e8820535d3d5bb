//! Small files with bytes changed at random, the same for each seed: what the GPU decodes, the host decodes, and the same.

use std::panic::{AssertUnwindSafe, catch_unwind};

use feedwater::cuda::Device;
use parquet::basic::{Compression, Encoding};
use parquet::file::properties::{WriterProperties, WriterVersion};

use crate::cuda::{nothing_left, session};
use crate::generated::encoded;
use crate::strings::strings;
use crate::support::{Agreed, agree, whole};
use crate::tables::{Nulls, flat, written};

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// Changes that damage does, and that hostile people make.
pub(crate) fn mutate(bytes: &mut [u8], random: &mut Random) {
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len());
        match random.below(4) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.next() as u8,
            2 => bytes[at] = [0, 0x7f, 0x80, 0xff][random.below(4)],
            _ => {
                // Numbers at their ends, as varints and as they are.
                let end = (at + 5).min(bytes.len());
                bytes[at..end].copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 0x0f][..end - at]);
            }
        }
    }
}

fn files() -> Vec<Vec<u8>> {
    // A few columns of the many, so that a change hits levels, indices and headers rather than values.
    let batch = flat(48, &[Nulls::Required, Nulls::Some]);
    let wanted = ["boolean", "i16", "i64", "f64", "decimal_20", "fixed_3"];
    let schema = batch.schema();
    let columns = schema.fields().iter().enumerate();
    let columns: Vec<_> = columns
        .filter(|(_, field)| wanted.iter().any(|name| field.name().starts_with(name)))
        .map(|(at, _)| at)
        .collect();
    let batch = batch.project(&columns).unwrap();
    let base = || {
        WriterProperties::builder()
            .set_data_page_row_count_limit(16)
            .set_write_batch_size(8)
            .set_statistics_enabled(parquet::file::properties::EnabledStatistics::None)
    };
    let v2 = || base().set_writer_version(WriterVersion::PARQUET_2_0);
    let plain = |set: parquet::file::properties::WriterPropertiesBuilder| {
        let fields = batch.schema();
        let fields = fields.fields().iter();
        fields.fold(set.set_dictionary_enabled(false), |set, field| match field
            .name()
            .starts_with("boolean")
        {
            true => set,
            false => set.set_column_encoding(field.name().as_str().into(), Encoding::PLAIN),
        })
    };
    let sets = [
        base(),
        v2(),
        plain(base()),
        plain(v2()),
        base().set_compression(Compression::SNAPPY),
        v2().set_compression(Compression::ZSTD(Default::default())),
    ];
    let files = sets
        .into_iter()
        .map(|set| written(&batch, set.build()).to_vec());
    // Strings have lengths on their pages, which lead from one to the next.
    let texts = strings(48, &[Nulls::Some]);
    let small = |set: parquet::file::properties::WriterPropertiesBuilder| {
        encoded(
            set.set_dictionary_page_size_limit(90),
            &texts,
            Encoding::PLAIN,
        )
    };
    let sets = [
        base(),
        v2(),
        encoded(
            base().set_dictionary_enabled(false),
            &texts,
            Encoding::PLAIN,
        ),
        encoded(v2().set_dictionary_enabled(false), &texts, Encoding::PLAIN),
        small(base()),
        small(v2().set_compression(Compression::SNAPPY)),
    ];
    let texts = sets
        .into_iter()
        .map(|set| written(&texts, set.build()).to_vec());
    files.chain(texts).collect()
}

#[test]
fn in_pages() {
    const ROUNDS: usize = 480;
    const SEED: u64 = 0x5eed_0007;
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let files = files();
        let mut random = Random::new(SEED);
        let (mut right, mut wrong, mut by_gpu, mut by_host) = (0, 0, 0, 0);
        for round in 0..ROUNDS {
            let mut file = files[round % files.len()].clone();
            let end = file.len() - 8;
            let footer = u32::from_le_bytes(file[end..end + 4].try_into().unwrap());
            mutate(&mut file[4..end - footer as usize], &mut random);
            let what = format!("seed {SEED:#x}, round {round}");
            // What the crate panics with is contained, and says its line.
            let agreed = catch_unwind(AssertUnwindSafe(|| {
                agree(&gpu, &what, &file.into(), &whole)
            }));
            let agreed = agreed.unwrap_or_else(|_| panic!("{what}"));
            match &agreed {
                Agreed::Rows(..) => right += 1,
                Agreed::Failed => wrong += 1,
            }
            let (gpu, host) = agreed.counts();
            (by_gpu, by_host) = (by_gpu + gpu, by_host + host);
        }
        eprintln!("{right} right, {wrong} wrong; chunks: {by_gpu} by the GPU, {by_host} not");
        // All of it happens, or the changes are too weak or too strong to find anything.
        assert!(right > 30 && wrong > 30 && by_gpu > 300, "{right} {wrong}");
        assert!(by_host > 0);
    }
    nothing_left(&session);
}
