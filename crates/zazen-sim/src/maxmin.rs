//! Max-min fair rates: progressive filling (Bertsekas and Gallager, Data Networks §6.5.2).
//!
//! All flows grow alike until a link is full. The flows of that link stay, and the others go on.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Flows over links, as rows: flow f crosses `links[begin[f] .. begin[f + 1]]`.
#[derive(Clone, Debug, Default)]
pub struct Crossing {
    /// First entry of each flow in `links`, and the number of entries.
    pub begin: Vec<u32>,
    /// Links by flow.
    pub links: Vec<u32>,
}

impl Crossing {
    /// No flow.
    pub fn new() -> Crossing {
        Crossing { begin: vec![0], links: Vec::new() }
    }

    /// Adds a flow. It crosses at least one link, and no link twice.
    pub fn add(&mut self, links: impl IntoIterator<Item = u32>) {
        self.links.extend(links);
        self.begin.push(self.links.len() as u32);
    }

    /// Flows.
    pub fn flows(&self) -> usize {
        self.begin.len() - 1
    }

    /// The links of a flow.
    pub fn of(&self, flow: usize) -> &[u32] {
        &self.links[self.begin[flow] as usize..self.begin[flow + 1] as usize]
    }
}

/// The max-min fair rate of each flow. `capacity` is by link, in any unit; all are positive.
pub fn max_min(capacity: &[f64], crossing: &Crossing) -> Vec<f64> {
    let mut left = capacity.to_vec();
    let mut count = vec![0_u32; capacity.len()];
    crossing.links.iter().for_each(|link| count[*link as usize] += 1);
    let mut begin = vec![0_u32; capacity.len() + 1];
    for link in 0..capacity.len() {
        begin[link + 1] = begin[link] + count[link];
    }
    let mut at = begin.clone();
    let mut flows_of = vec![0_u32; crossing.links.len()];
    for flow in 0..crossing.flows() {
        for link in crossing.of(flow) {
            flows_of[at[*link as usize] as usize] = flow as u32;
            at[*link as usize] += 1;
        }
    }
    // The share of a link only grows while others are settled, so an entry that is out of date is
    // too small, and goes back with its present share. Positive numbers order as their bits do.
    let share = |left: f64, count: u32| (left.max(0.0) / f64::from(count)).to_bits();
    let mut heap: BinaryHeap<Reverse<(u64, u32)>> = (0..capacity.len() as u32)
        .filter(|link| count[*link as usize] > 0)
        .map(|link| Reverse((share(left[link as usize], count[link as usize]), link)))
        .collect();
    let mut rates = vec![-1.0; crossing.flows()];
    while let Some(Reverse((known, link))) = heap.pop() {
        let index = link as usize;
        if count[index] == 0 {
            continue;
        }
        let present = share(left[index], count[index]);
        if present > known {
            heap.push(Reverse((present, link)));
            continue;
        }
        let rate = f64::from_bits(present);
        for flow in &flows_of[begin[index] as usize..begin[index + 1] as usize] {
            let flow = *flow as usize;
            if rates[flow] >= 0.0 {
                continue;
            }
            rates[flow] = rate;
            for crossed in crossing.of(flow) {
                left[*crossed as usize] -= rate;
                count[*crossed as usize] -= 1;
            }
        }
    }
    rates
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rates(capacity: &[f64], flows: &[&[u32]]) -> Vec<f64> {
        let mut crossing = Crossing::new();
        flows.iter().for_each(|links| crossing.add(links.iter().copied()));
        max_min(capacity, &crossing)
    }

    /// Textbook cases: the parking lot; Bertsekas and Gallager's figure 6.10 in small; one flow.
    #[test]
    fn textbook_cases() {
        assert_eq!(rates(&[1.0], &[&[0], &[0], &[0], &[0]]), [0.25; 4]);
        // A long flow over three links, and a short one on each.
        assert_eq!(rates(&[1.0; 3], &[&[0, 1, 2], &[0], &[1], &[2]]), [0.5; 4]);
        // Parking lot with unequal links: the long flow is held by the narrow one.
        assert_eq!(rates(&[1.0, 0.4, 1.0], &[&[0, 1, 2], &[0], &[1], &[2]]), [0.2, 0.8, 0.2, 0.8]);
        // What the bottleneck's flows leave goes to the others.
        assert_eq!(rates(&[10.0, 4.0], &[&[0, 1], &[1], &[0], &[0]]), [2.0, 2.0, 4.0, 4.0]);
    }

    proptest! {
        /// The definition: no link is beyond its capacity, and each flow has a bottleneck, a full
        /// link on which no flow is faster.
        #[test]
        fn each_flow_has_a_bottleneck(
            capacity in prop::collection::vec(1..1000_u32, 1..12),
            flows in prop::collection::vec(prop::collection::btree_set(0..12_u32, 1..6), 1..25),
        ) {
            let capacity: Vec<f64> = capacity.into_iter().map(f64::from).collect();
            let links = capacity.len() as u32;
            let flows: Vec<Vec<u32>> = flows.into_iter().map(|set| {
                let mut links: Vec<u32> = set.into_iter().map(|link| link % links).collect();
                links.sort_unstable();
                links.dedup();
                links
            }).collect();
            let mut crossing = Crossing::new();
            flows.iter().for_each(|links| crossing.add(links.iter().copied()));
            let rates = max_min(&capacity, &crossing);
            let load = |link: u32| -> f64 {
                flows.iter().zip(&rates)
                    .filter(|(links, _)| links.contains(&link))
                    .map(|(_, rate)| rate)
                    .sum()
            };
            for link in 0..links {
                prop_assert!(load(link) <= capacity[link as usize] * (1.0 + 1e-9));
            }
            for (links, rate) in flows.iter().zip(&rates) {
                let has_bottleneck = links.iter().any(|link| {
                    let fastest = flows.iter().zip(&rates).filter(|(links, _)| links.contains(link))
                        .map(|(_, rate)| *rate).fold(0.0, f64::max);
                    load(*link) >= capacity[*link as usize] * (1.0 - 1e-9) && *rate >= fastest * (1.0 - 1e-9)
                });
                prop_assert!(has_bottleneck, "{rate} on {links:?}");
            }
        }
    }
}
