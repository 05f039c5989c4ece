//! Makes new inputs from old ones, the same for the same seed: flips bits, changes bytes and
//! lengths, and cuts, doubles and splices pieces.

use zazen_env::SeededRandom;

/// Inputs grow no longer than this.
const BYTES_MAX: usize = 1 << 16;
/// Values at which decoders go wrong.
const EDGES: [u64; 8] = [0, 1, 0x7f, 0xff, 0xffff, 0x7fff_ffff, u64::MAX >> 1, u64::MAX];

/// A new input from one of `seeds`.
pub fn mutate(random: &mut SeededRandom, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = pick(random, seeds).clone();
    for _ in 0..=random.below(4) {
        step(random, seeds, &mut bytes);
    }
    bytes.truncate(BYTES_MAX);
    bytes
}

fn pick<'a>(random: &mut SeededRandom, seeds: &'a [Vec<u8>]) -> &'a Vec<u8> {
    &seeds[random.below(seeds.len() as u64) as usize]
}

/// A place in `bytes`, or its end.
fn place(random: &mut SeededRandom, bytes: &[u8]) -> usize {
    random.below(bytes.len() as u64 + 1) as usize
}

/// A short range of `bytes`.
fn range(random: &mut SeededRandom, bytes: &[u8]) -> std::ops::Range<usize> {
    let from = place(random, bytes);
    from..bytes.len().min(from + 1 + random.below(32) as usize)
}

fn step(random: &mut SeededRandom, seeds: &[Vec<u8>], bytes: &mut Vec<u8>) {
    let at = place(random, bytes);
    match random.below(8) {
        0 | 1 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
        2 if at < bytes.len() => bytes[at] = random.next_u64() as u8,
        // A number of one to eight bytes, little endian like all of Zazen's numbers.
        3 => {
            let value = EDGES[random.below(8) as usize].to_le_bytes();
            let width = (1usize << random.below(4)).min(bytes.len() - at);
            bytes[at..at + width].copy_from_slice(&value[..width]);
        }
        4 => bytes.truncate(at),
        5 => drop(bytes.drain(range(random, bytes))),
        6 => {
            let twice = bytes[range(random, bytes)].to_vec();
            bytes.splice(at..at, twice);
        }
        7 => {
            let other = pick(random, seeds);
            let from = place(random, other);
            let upto = other.len().min(from + 1 + random.below(256) as usize);
            bytes.splice(at..at, other[from..upto].iter().copied());
        }
        _ => bytes.push(random.next_u64() as u8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_those_of_the_seed_and_differ() {
        let seeds = [vec![1, 2, 3, 4], vec![9; 40]];
        let some = |seed| {
            let mut random = SeededRandom::new(seed);
            (0..500).map(|_| mutate(&mut random, &seeds)).collect::<Vec<_>>()
        };
        assert_eq!(some(5), some(5));
        assert_ne!(some(5), some(6));
        let distinct: std::collections::BTreeSet<_> = some(5).into_iter().collect();
        assert!(distinct.len() > 300, "{}", distinct.len());
        assert!(mutate(&mut SeededRandom::new(1), &[vec![]]).len() < 100);
    }
}
