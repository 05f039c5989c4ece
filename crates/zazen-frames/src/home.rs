//! Which node brings a block from the backing store when several nodes want it: its home. The
//! others ask the home for it, so that a block is read from the store about once for the whole
//! cluster.
//!
//! Invariants: nodes that have the same list, in any order, name the same home; if a node leaves
//! the list, only the blocks whose home it was get another one. The home is a matter of speed
//! alone: whoever gets nothing from it reads the store.

use zazen_core::fnv::{mixed, spread_64};

/// The largest block that one node asks another for.
pub const GIVEN_BYTES_MAX: u64 = 16 << 20;

/// The nodes in `text`: one `host:port` a line or between commas. Lines that begin with `#` are
/// comments.
pub fn parse_nodes(text: &str) -> Vec<String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let words = lines.flat_map(|line| line.split(',')).map(str::trim).filter(|word| !word.is_empty());
    let mut nodes: Vec<String> = words.map(str::to_owned).collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

/// The indices of `nodes`, the home of block `number` of `file` first, then who stands in for it.
/// By highest random weight (Thaler and Ravishankar, 1998).
pub fn ranked(nodes: &[String], file: &str, number: u64) -> Vec<usize> {
    let block = mixed(spread_64(file.as_bytes()) ^ mixed(number));
    let weight = |node: &String| mixed(spread_64(node.as_bytes()) ^ block);
    let mut ranked: Vec<usize> = (0..nodes.len()).collect();
    ranked.sort_by_key(|at| (std::cmp::Reverse(weight(&nodes[*at])), nodes[*at].clone()));
    ranked
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(count: usize) -> Vec<String> {
        (0..count).map(|node| format!("10.0.0.{node}:7345")).collect()
    }

    #[test]
    fn a_list_of_nodes() {
        fn check(text: &str, expected: &[&str]) {
            assert_eq!(parse_nodes(text), expected, "{text:?}");
        }
        check("", &[]);
        check("# none\n\n", &[]);
        check("b:1\n a:2 \n#c:3\nb:1\n", &["a:2", "b:1"]);
        check("b:1,a:2,,", &["a:2", "b:1"]);
    }

    #[test]
    fn homes_are_spread_evenly() {
        let nodes = nodes(7);
        let mut homes = [0u32; 7];
        for file in ["a", "b", "/lustre/field.h5"] {
            for number in 1000..8000 {
                homes[ranked(&nodes, file, number)[0]] += 1;
            }
        }
        assert!(homes.iter().all(|count| (2700..3300).contains(count)), "{homes:?}");
    }

    #[test]
    fn a_node_that_leaves_moves_only_its_own_blocks() {
        let all = nodes(6);
        let mut turned = all.clone();
        turned.reverse();
        for number in 0..2000 {
            let ranks: Vec<&str> = ranked(&all, "f", number).iter().map(|at| all[*at].as_str()).collect();
            let again: Vec<&str> =
                ranked(&turned, "f", number).iter().map(|at| turned[*at].as_str()).collect();
            assert_eq!(ranks, again, "the order of the list does not matter");
            let mut fewer = all.clone();
            let left = fewer.remove(number as usize % 6);
            let now: Vec<&str> = ranked(&fewer, "f", number).iter().map(|at| fewer[*at].as_str()).collect();
            let expected: Vec<&str> = ranks.into_iter().filter(|node| *node != left).collect();
            assert_eq!(now, expected);
        }
    }
}
