//! The rounds that tell each rank who shares its node: two sparse all-to-alls and a sum.
//!
//! A node's id chooses one rank, the node's *registrar*. Every rank tells its id to that registrar,
//! which answers only those that share a node. So a rank sends some tens of bytes, whatever the
//! number of ranks. If the header alone shows a perfect hit, these rounds are left out.

use super::{Machine, Stage, Step, expect};
use crate::blocks::violation;
use crate::collectives::Blocks;
use crate::node::{Node, registrar};
use std::collections::BTreeMap;
use zazen_core::Result;
use zazen_wire::codec::{Reader, Writer};

impl Machine {
    /// Tells the registrar of this rank's node where the rank is.
    pub(super) fn ask_for_node(&mut self) -> Result<Step> {
        if self.size == 1 {
            let (native, offer_bytes) = self.held();
            return self.on_held(&[1, native, offer_bytes]);
        }
        let id = self.input()?.node;
        let mut writer = Writer::new();
        writer.u128(id);
        self.stage = Stage::Ids;
        Ok(Step::Alltoallv(vec![(registrar(id, self.size), writer.into_bytes())]))
    }

    pub(super) fn on_ids(&mut self, blocks: &Blocks) -> Result<Step> {
        const NAME: &str = "node id";
        let mut nodes: BTreeMap<u128, Vec<usize>> = BTreeMap::new();
        for (from, block) in blocks {
            let mut reader = Reader::new(NAME, block);
            let id =
                reader.u128().ok().filter(|id| block.len() == 16 && registrar(*id, self.size) == self.rank);
            let Some(id) = id else { return Err(violation(NAME, *from, "it is not for this rank")) };
            nodes.entry(id).or_default().push(*from);
        }
        let mut told: Blocks = Vec::new();
        for members in nodes.values().filter(|members| members.len() > 1) {
            let word = |(position, rank): (usize, &usize)| (*rank, Node::told(members, position));
            told.extend(members.iter().enumerate().map(word));
        }
        told.sort_unstable_by_key(|(rank, _)| *rank);
        self.stage = Stage::Members;
        Ok(Step::Alltoallv(told))
    }

    pub(super) fn on_members(&mut self, blocks: &Blocks) -> Result<Step> {
        self.plan.node = match blocks.as_slice() {
            [] => Node::alone(self.rank),
            [(from, block)] if *from == registrar(self.input()?.node, self.size) => {
                Node::read(*from, block, self.rank, self.size)?
            }
            [(from, _), ..] => {
                return Err(violation("the members of a node", *from, "it is not this node's registrar"));
            }
        };
        let (native, offer_bytes) = self.held();
        self.stage = Stage::Held;
        Ok(Step::Sum(if self.plan.node.leads() { vec![1, native, offer_bytes] } else { vec![0; 3] }))
    }

    /// From here on all ranks know how many nodes there are, and what these hold together.
    pub(super) fn on_held(&mut self, words: &[u64]) -> Result<Step> {
        expect(words, 3)?;
        self.plan.shared = words[0] < self.size as u64;
        self.plan.offered = words[2];
        self.compare(words[1], words[2])
    }
}
