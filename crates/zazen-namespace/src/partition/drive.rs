//! Driving transactions, and executing parts for other partitions.

use super::change::Change;
use super::event::Action;
use super::machine::Partition;
use super::mutant::Mutant;
use super::peer::{Ask, NotDone, Part, PeerBody, PeerMessage};
use super::transaction::{After, Stage, Transaction};
use crate::operation::Request;
use crate::{Errno, PartitionNo, Planted};

impl Partition {
    /// Begins a transaction. Names that it holds already, it holds by `next_transaction`'s number.
    pub(super) fn begin(&mut self, now_ns: i64, token: u64, transaction: Box<Transaction>) {
        let mut transaction = transaction;
        if self.plants(Mutant::HoldsInAnyOrder) && transaction.stage == Stage::HoldDest {
            transaction.stage = Stage::HoldSource;
        }
        // A transaction that holds a name already has taken the number before.
        let number = match transaction.holds_before() {
            true => self.tables.next_transaction - 1,
            false => self.tables.next_transaction,
        };
        self.waiting.tokens.insert(number, token);
        self.drive(now_ns, number, transaction, false);
    }

    /// Goes on with a transaction that waited for something here.
    pub(super) fn go_on(&mut self, now_ns: i64, number: u64) {
        if let Some(transaction) = self.tables.driven.get(&number) {
            let transaction = transaction.clone();
            self.drive(now_ns, number, transaction, true);
        }
    }

    /// Executes parts here and asks for the first one elsewhere.
    pub(super) fn drive(
        &mut self,
        now_ns: i64,
        number: u64,
        mut transaction: Box<Transaction>,
        stored: bool,
    ) {
        let me = (self.number(), number);
        while let Some(part) = self.next_part(&transaction) {
            if part.partition() == self.number() {
                match self.execute_part(now_ns, me, &part) {
                    Some(body) => transaction.take(body),
                    None => {
                        self.waiting.own.insert(number);
                        return self.change(&Change::Drive { number, transaction });
                    }
                }
            } else {
                transaction.step += 1;
                let (to, step) = (part.partition(), transaction.step);
                let drive = Change::Drive { number, transaction };
                if self.plants(Mutant::LosesIntent) || self.has(Planted::LoseIntent) {
                    let _ = self.tables.apply(&drive);
                } else {
                    self.change(&drive);
                }
                return self.send_part(now_ns, number, to, step, part);
            }
        }
        if stored {
            self.change(&Change::Ended { number });
        }
        self.waiting.sent_ns.remove(&number);
        let token = self.waiting.tokens.remove(&number);
        if let Some(spread) = &transaction.spread {
            self.spread_ended(spread);
        }
        let Transaction { request, .. } = &*transaction;
        match transaction.answer() {
            Some(answer) => self.finish(now_ns, token, request, answer),
            None => self.begin_later(token, request.clone()),
        }
    }

    fn begin_later(&mut self, token: Option<u64>, request: Request) {
        // Without a token, nobody waits on this primary: the client repeats its request.
        if let Some(token) = token {
            self.waiting.later.push((token, request));
        }
    }

    fn send_part(&mut self, now_ns: i64, number: u64, to: PartitionNo, step: u32, part: Part) {
        self.waiting.sent_ns.insert(number, now_ns);
        let oldest = self.tables.driven.first_key_value().map_or(number, |(oldest, _)| *oldest);
        let body = PeerBody::Ask(Ask { oldest, part });
        self.leaving.push(Action::Send { to, message: PeerMessage { transaction: number, step, body } });
    }

    /// Asks once more for the part that a transaction waits for.
    pub(super) fn ask_again(&mut self, now_ns: i64, number: u64) {
        if self.plants(Mutant::NeverRepeats) {
            return;
        }
        let Some(transaction) = self.tables.driven.get(&number) else {
            self.waiting.sent_ns.remove(&number);
            return;
        };
        match self.next_part(transaction) {
            Some(part) if part.partition() != self.number() => {
                let (to, step) = (part.partition(), transaction.step);
                self.send_part(now_ns, number, to, step, part);
            }
            _ => self.go_on(now_ns, number),
        }
    }

    /// Another partition says something.
    pub(super) fn peer(&mut self, now_ns: i64, from: PartitionNo, message: PeerMessage) {
        let PeerMessage { transaction, step, body } = message;
        match body {
            PeerBody::Ask(ask) => self.asked(now_ns, from, transaction, step, ask),
            body => self.answered(now_ns, from, transaction, step, body),
        }
    }

    fn asked(&mut self, now_ns: i64, from: PartitionNo, transaction: u64, step: u32, ask: Ask) {
        let floor = self.tables.floors.get(&from).copied().unwrap_or(0);
        if ask.oldest > floor {
            self.change(&Change::Floor { driver: from, oldest: ask.oldest });
        }
        if transaction < floor.max(ask.oldest) && !self.plants(Mutant::TakesLateParts) {
            return;
        }
        let id = (from, transaction);
        let reads = ask.part.reads();
        let forgets = self.plants(Mutant::ForgetsParts);
        match self.tables.executed.get(&id).filter(|_| !reads && !forgets) {
            Some((newest, body)) if step == *newest => {
                let body = body.clone();
                return self.answer_part(from, transaction, step, body);
            }
            // An old copy of a message whose part was executed long ago.
            Some((newest, _)) if step < *newest => return,
            _ => {}
        }
        self.waiting.asks.retain(|(of, number, ..)| (*of, *number) != id);
        let body = if ask.part.partition() == self.number() {
            self.execute_part(now_ns, id, &ask.part)
        } else {
            Some(PeerBody::Refused(NotDone { errno: Errno::EINVAL }))
        };
        let Some(body) = body else {
            return self.waiting.asks.push((from, transaction, step, ask));
        };
        if !reads {
            self.change(&Change::Executed { driver: from, transaction, step, body: body.clone() });
        }
        self.answer_part(from, transaction, step, body);
    }

    fn answer_part(&mut self, to: PartitionNo, transaction: u64, step: u32, body: PeerBody) {
        self.leaving.push(Action::Send { to, message: PeerMessage { transaction, step, body } });
    }

    fn answered(&mut self, now_ns: i64, from: PartitionNo, number: u64, step: u32, body: PeerBody) {
        let Some(transaction) = self.tables.driven.get(&number) else { return };
        let asked = self.waits_for(transaction) == Some(from);
        let newest = transaction.step == step || self.plants(Mutant::TakesAnyStep);
        if !asked || !newest || from == self.number() {
            return;
        }
        let mut transaction = transaction.clone();
        transaction.take(body);
        self.waiting.sent_ns.remove(&number);
        self.drive(now_ns, number, transaction, true);
    }
}

impl Transaction {
    /// Whether it held its name before it began.
    fn holds_before(&self) -> bool {
        self.dest_held && self.after == After::Done || self.spread.is_some()
    }
}
