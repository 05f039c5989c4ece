//! What nodes tell each other: envelopes of messages. Envelopes may be lost, doubled, delayed and
//! reordered.

use crate::map::{Change, Map};
use crate::node::Position;
use crate::partition::PeerMessage;
use crate::tagged::tagged;
use crate::{Epoch, Incarnation, InodeId, NodeNo, PartitionNo};
use zazen_core::Result;
use zazen_core::limits::PATH_BYTES_MAX;
use zazen_wire::codec::Reader;
use zazen_wire::field::{Blob, List, Nested, Opt, Text};

/// The longest record on the wire.
const BODY_BYTES_MAX: usize = crate::node::RECORD_BYTES_MAX;

zazen_wire::messages! {
    /// Messages of a node to another. Who brings it in must have proven that the sender is the node
    /// with this `key`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Envelope {
        /// The namespace; 0 from a node that wants to join.
        namespace: u128,
        /// The sender; 0 while it has no number.
        from: NodeNo,
        /// What the sender drew when its disk was first used.
        key: u128,
        /// The sender's life.
        incarnation: Incarnation,
        /// Where the sender can be reached.
        address: String = Text<PATH_BYTES_MAX>,
        /// The map that the sender knows.
        epoch: Epoch,
        /// The messages, in their order.
        messages: Vec<Message> = List<Message>,
    }

    /// Records of a partition, from its primary to a backup.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Append {
        /// The partition.
        partition: PartitionNo,
        /// The primary's epoch.
        epoch: Epoch,
        /// The record before the first of these.
        previous: Position = Nested<Position>,
        /// The records: the epoch of each, and its body. May be none.
        records: Vec<(Epoch, Vec<u8>)> = List<(Epoch, Blob<BODY_BYTES_MAX>)>,
    }

    /// What a backup has, as durable as the level says.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Appended {
        /// The partition.
        partition: PartitionNo,
        /// The primary's epoch.
        epoch: Epoch,
        /// Up to this record.
        index: u64,
    }

    /// Records do not fit on what a backup has.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Behind {
        /// The partition.
        partition: PartitionNo,
        /// The primary's epoch.
        epoch: Epoch,
        /// The last record that the backup has; 0 if it needs a snapshot.
        last: Position = Nested<Position>,
    }

    /// A part of a snapshot's file.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Piece {
        /// The partition.
        partition: PartitionNo,
        /// The primary's epoch.
        epoch: Epoch,
        /// The last record in the snapshot.
        position: Position = Nested<Position>,
        /// Where in the file the bytes are.
        offset: u64,
        /// Bytes of the whole file.
        total: u64,
        /// The bytes.
        bytes: Vec<u8> = Blob<BODY_BYTES_MAX>,
    }

    /// What a backup has of a snapshot.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Taken {
        /// The partition.
        partition: PartitionNo,
        /// The primary's epoch.
        epoch: Epoch,
        /// The last record in the snapshot.
        position: Position = Nested<Position>,
        /// Bytes of the file that it has, from the file's beginning on.
        offset: u64,
    }

    /// What the primary of one partition tells that of another.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Between {
        /// Which tells.
        from: PartitionNo,
        /// Which is told.
        to: PartitionNo,
        /// What.
        message: PeerMessage = Nested<PeerMessage>,
    }

    /// No name leads to an object any more.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Unneeded {
        /// The inode.
        id: InodeId,
        /// The generation.
        generation: u64,
    }

    /// A node asks the stewards for its lease, and to be let in.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Renew {
        /// The node's clock. It comes back in the grant.
        sent_ns: u64,
        /// The node's share of partitions.
        weight: u8,
    }

    /// The node may answer for its partitions, for the time of a lease from when it asked.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Granted {
        /// The life that is meant.
        incarnation: Incarnation,
        /// The node's clock when it asked.
        sent_ns: u64,
    }

    /// The newest map.
    #[derive(Clone, Debug, PartialEq, Eq)]
    News {
        /// The map.
        map: Map = Nested<Map>,
    }

    /// Asks the stewards for a change.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Propose {
        /// The change.
        change: Change,
    }

    /// A steward wants to lead.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Vote {
        /// The term that it wants to lead.
        term: u64,
        /// It only asks whether it would be elected.
        trial: bool,
        /// The term in which its map was stored.
        value_term: u64,
        /// The number of its map.
        value_index: u64,
    }

    /// A steward's vote.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Voted {
        /// The voter's term; the candidate's, if the vote is for it.
        term: u64,
        /// As asked.
        trial: bool,
        /// Whether the vote is for the candidate.
        granted: bool,
    }

    /// The leader's sign of life, with a map for a steward that lacks it.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Store {
        /// The leader's term.
        term: u64,
        /// Numbers the leader's signs of life.
        round: u64,
        /// The map to store, if there is one.
        value: Option<Value> = Opt<Nested<Value>>,
        /// The term of the newest map that holds.
        committed_term: u64,
        /// The number of the newest map that holds.
        committed_index: u64,
    }

    /// What a steward has stored.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Stored {
        /// The steward's term.
        term: u64,
        /// The sign of life that it answers.
        round: u64,
        /// The term of the map that it has.
        value_term: u64,
        /// The number of the map that it has.
        value_index: u64,
    }

    /// A map, as the stewards store it.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Value {
        /// The term of the leader that stored it.
        term: u64,
        /// Its number.
        index: u64,
        /// The map.
        map: Map = Nested<Map>,
    }

    /// What a steward has on its disk.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Ballot {
        /// Its term.
        term: u64,
        /// Whom it voted for in that term; 0 for nobody.
        voted: NodeNo,
        /// Its map.
        value: Value = Nested<Value>,
    }
}

tagged! {
    /// A message.
    Message {
        /// Records.
        Append = 1 (Append),
        /// Records are there.
        Appended = 2 (Appended),
        /// Records do not fit.
        Behind = 3 (Behind),
        /// A part of a snapshot.
        Piece = 4 (Piece),
        /// A part of a snapshot is there.
        Taken = 5 (Taken),
        /// A transaction's part.
        Between = 6 (Between),
        /// An object is not needed.
        Unneeded = 7 (Unneeded),
        /// A lease is asked for.
        Renew = 10 (Renew),
        /// A lease is given.
        Granted = 11 (Granted),
        /// A map.
        News = 12 (News),
        /// A change is asked for.
        Propose = 13 (Propose),
        /// A vote is asked for.
        Vote = 20 (Vote),
        /// A vote.
        Voted = 21 (Voted),
        /// A leader's sign of life.
        Store = 22 (Store),
        /// The answer to it.
        Stored = 23 (Stored),
    }
}

/// Who sent an envelope, as the envelope says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentBy {
    /// What the sender drew when its disk was first used.
    pub key: u128,
    /// Where the sender can be reached.
    pub address: String,
}

impl SentBy {
    /// Reads the beginning of an envelope's bytes.
    pub fn of(bytes: &[u8]) -> Result<SentBy> {
        let mut reader = Reader::new("envelope", bytes);
        let (_namespace, _from) = (reader.u128()?, reader.u32()?);
        let key = reader.u128()?;
        let _incarnation = reader.u64()?;
        Ok(SentBy { key, address: reader.text(PATH_BYTES_MAX)? })
    }
}

impl Envelope {
    /// The changes of the map that its sender asks the stewards for.
    pub fn proposals(&self) -> impl Iterator<Item = &Change> {
        self.messages.iter().filter_map(|message| match message {
            Message::Propose(propose) => Some(&propose.change),
            _ => None,
        })
    }

    /// Whether it asks for a steward's vote; and whether it gives one.
    pub fn votes(&self) -> (bool, bool) {
        let asks = |message: &Message| matches!(message, Message::Vote(vote) if !vote.trial);
        let gives =
            |message: &Message| matches!(message, Message::Voted(vote) if !vote.trial && vote.granted);
        (self.messages.iter().any(asks), self.messages.iter().any(gives))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zazen_wire::Message as _;

    #[test]
    fn the_beginning_of_an_envelope_tells_its_sender() {
        let envelope = Envelope {
            namespace: 1 << 100,
            from: NodeNo(7),
            key: 3 << 90,
            incarnation: Incarnation(9),
            address: "node7:7345".to_owned(),
            epoch: Epoch(4),
            messages: vec![Message::Renew(Renew { sent_ns: 5, weight: 1 })],
        };
        let bytes = envelope.encode();
        let from = SentBy { key: envelope.key, address: envelope.address };
        assert_eq!(SentBy::of(&bytes).expect("a sender"), from);
        for cut in 0..57 {
            SentBy::of(&bytes[..cut]).expect_err("a part of a sender");
        }
    }
}
