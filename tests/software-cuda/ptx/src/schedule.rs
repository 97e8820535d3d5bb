//! In which order blocks, warps, groups and lanes run.

/// An order that hardware would be free to choose too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Schedule {
    /// Blocks, warps and lanes from the first to the last; groups of a warp join as early as they can.
    #[default]
    InOrder,
    /// From the last to the first.
    Reversed,
    /// Any order, switching at any instruction; the same for the same number.
    Shuffled(u64),
    /// Every lane runs alone, as far as it can, and lanes join only where an instruction says that they have to.
    ///
    /// This is what a kernel has to bear from sm_70 on, and where a missing `__syncwarp` shows in the result.
    Apart,
}

impl Schedule {
    /// Whether lanes that meet at an instruction go on together.
    pub(crate) fn joins(self) -> bool {
        self != Self::Apart
    }

    /// Whether lanes that do the same access do it from the last to the first.
    pub(crate) fn last_lane_first(self) -> bool {
        self == Self::Reversed
    }

    /// `count` things in this order.
    pub(crate) fn order(self, count: u64, random: &mut Random) -> Box<dyn Iterator<Item = u64>> {
        match self {
            // Of very many blocks, the order of the first ones would tell nothing that costs that much memory.
            Self::Shuffled(_) if count <= 1 << 16 => {
                let mut all: Vec<u64> = (0..count).collect();
                for index in (1..all.len()).rev() {
                    all.swap(index, random.below(index as u64 + 1) as usize);
                }
                Box::new(all.into_iter())
            }
            Self::Reversed => Box::new((0..count).rev()),
            _ => Box::new(0..count),
        }
    }

    /// For how many steps a warp runs before another one may.
    pub(crate) fn burst(self, random: &mut Random) -> u64 {
        match self {
            Self::Shuffled(_) => 1 + random.below(64),
            _ => 20_000,
        }
    }

    pub(crate) fn random(self) -> Random {
        Random(match self {
            Self::Shuffled(seed) => seed ^ 0x9e37_79b9_7f4a_7c15,
            _ => 1,
        })
    }
}

/// Numbers that look random and are the same for the same start (a linear congruence; its upper bits are used).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// A number below `limit`, which is not zero.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) % limit
    }
}
