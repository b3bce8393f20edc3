//! The keys to decide: the same in each run, in the same order for all limiters.

/// Writes a key as a handler would do.
pub(crate) fn write(key: &mut String, index: u32) {
    key.clear();
    key.push_str("user:");
    key.push_str(itoa::Buffer::new().format(index));
}

/// Returns a key as [`write`] writes it.
pub(crate) fn text(index: u32) -> String {
    let mut key = String::new();
    write(&mut key, index);
    key
}

/// Returns `count` of `keys` keys, all with the same probability.
pub(crate) fn uniform(keys: u32, count: usize) -> Vec<u32> {
    let mut random = random();
    (0..count).map(|_| (random() % u64::from(keys)) as u32).collect()
}

/// Returns `count` keys or somewhat more: each of `keys` keys once, and again, each time in another order.
pub(crate) fn in_passes(keys: u32, count: usize) -> Vec<u32> {
    let mut random = random();
    let mut pass: Vec<u32> = (0..keys).collect();
    let mut picked = Vec::new();
    while picked.len() < count {
        for last in (1..pass.len()).rev() {
            pass.swap(last, (random() % (last as u64 + 1)) as usize);
        }
        picked.extend(&pass);
    }
    picked
}

/// Returns `count` of `keys` keys. The probability of the key `i` is proportional to 1/(i + 1).
pub(crate) fn zipf(keys: u32, count: usize) -> Vec<u32> {
    let mut random = random();
    let sums: Vec<f64> = (1..=keys)
        .scan(0.0, |sum, rank| {
            *sum += 1.0 / f64::from(rank);
            Some(*sum)
        })
        .collect();
    let total = sums[sums.len() - 1];
    let pick = |number: u64| {
        let at = number as f64 / (1_u64 << 53) as f64 * total;
        sums.partition_point(|sum| *sum < at) as u32
    };
    (0..count).map(|_| pick(random())).collect()
}

/// The MMIX generator of Knuth.
fn random() -> impl FnMut() -> u64 {
    let mut state = 1_u64;
    move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 11
    }
}

/// Returns the powers of ten from 1 to `most`.
pub(crate) fn powers(most: u32) -> impl Iterator<Item = u32> {
    (0..10).map(|power| 10_u32.pow(power)).take_while(move |number| *number <= most)
}
