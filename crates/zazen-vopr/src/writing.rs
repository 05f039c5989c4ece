//! Writers at work: they write frames to the backing store and push them to the nodes, around the
//! shipped [`zazen_push::Writer`].

use crate::calls;
use crate::content::{self, FrameId};
use crate::mutant::Mutant;
use crate::net::Caller;
use crate::world::{Event, MS, World};
use crate::writer::Sending;
use zazen_core::{Error, ErrorKind, FrameNo, Result, Series};
use zazen_frames::messages::{Push, Pushed, frames_fn};
use zazen_push::Action;
use zazen_wire::{Message, service};

/// How long a node may take for one frame.
const TIMEOUT_NS: u64 = 2_000 * MS;

impl World {
    /// The next frame of a writer: first to the backing store, then to a node.
    pub(crate) fn produce(&mut self, at: usize) {
        let now_ns = self.now_ns();
        let Some(frame) = self.writers[at].plan.pop() else { return };
        if !self.writers[at].plan.is_empty() {
            let pause = self.random.below(2 * self.profile.calm_ns / self.profile.frames);
            self.schedule.after(pause, Event::Produce { writer: at });
        }
        let version = self.backing.write(frame, now_ns);
        self.checks.excuse_frame(frame);
        self.tell(|| format!("writer {at}: {frame} in version {version}"));
        let Ok(number) = FrameNo::new(frame.number) else { return };
        // One in ten is not pushed; neither is a number that is still in flight.
        if self.random.percent(10) || self.writers[at].flights.contains_key(&number) {
            return;
        }
        self.writers[at].flights.insert(number, (frame, version));
        let bytes = frame.length(version) as u64;
        self.writer_steps(at, zazen_push::Event::Submit { frame: number, bytes });
    }

    fn writer_steps(&mut self, at: usize, event: zazen_push::Event) {
        let now_ns = self.now_ns();
        let mut actions = Vec::new();
        let writer = &mut self.writers[at];
        writer.time.set(now_ns);
        writer.writer.step(writer.time.now_ns(), event, &mut actions);
        for action in actions {
            match action {
                Action::Send { frame, node } => self.push(at, frame, node),
                Action::Done { frame, .. } => _ = self.writers[at].flights.remove(&frame),
                _ => {}
            }
        }
    }

    fn push(&mut self, at: usize, number: FrameNo, node: usize) {
        let now_ns = self.now_ns();
        let Some((frame, version)) = self.writers[at].flights.get(&number).copied() else { return };
        let host = self.writers[at].host;
        let idle = self.writers[at].idle.iter().position(|(of, _)| *of == node);
        let conn = match idle {
            Some(slot) => self.writers[at].idle.swap_remove(slot).1,
            None => self.net.connect(Caller::Writer(at), host, node),
        };
        let message = self.push_message(at, frame, version);
        let writer = &mut self.writers[at];
        writer.next_call += 1;
        let call = writer.next_call;
        writer.calls.insert(conn, Sending { call, frame: number, node, sent_ns: now_ns });
        let Ok(message) = message else { return };
        let bytes =
            calls::request(service::FRAMES, frames_fn::PUSH, call, &message.encode(), &frame.bytes(version));
        self.send(conn, true, bytes);
        self.schedule.after(TIMEOUT_NS, Event::Timeout { conn, call });
    }

    fn push_message(&self, at: usize, frame: FrameId, version: u32) -> Result<Push> {
        let wall_ns = self.writers[at].time.wall_ns();
        let gone = || Error::new(ErrorKind::NotFound, "the writer's own file is gone");
        let seen = self.backing.seen(frame, version, wall_ns).ok_or_else(gone)?;
        Ok(Push {
            dataset: content::spelled(frame.dataset),
            source: frame.source()?,
            meta: frame.meta(version, seen.validator)?,
            series: Series::of(&content::layout()?),
        })
    }

    pub(crate) fn writer_receives(&mut self, at: usize, conn: u64, bytes: Option<Vec<u8>>) {
        let Some(bytes) = bytes else {
            let outcome = match self.mutant {
                Some(Mutant::ResetIsSuccess) => Ok(Pushed::Stored),
                _ => Err(calls::gone()),
            };
            return self.push_ends(at, conn, outcome, false);
        };
        let (incoming, reply) = self.writers[at].replies.entry(conn).or_default();
        let Ok(parts) = incoming.feed(&bytes) else {
            return self.push_ends(at, conn, Err(calls::gone()), false);
        };
        let replies: Vec<_> = parts.into_iter().filter_map(|part| reply.take(part)).collect();
        for (call, result) in replies {
            let awaited = self.writers[at].calls.get(&conn).map(|sending| sending.call);
            if awaited == Some(call) || awaited.is_some() && self.mutant == Some(Mutant::AcceptDoubled) {
                let outcome = result.and_then(|(payload, _)| Pushed::decode(&payload));
                self.push_ends(at, conn, outcome, true);
            }
        }
    }

    pub(crate) fn writer_waited(&mut self, at: usize, conn: u64, call: u64) {
        if self.writers[at].calls.get(&conn).is_some_and(|sending| sending.call == call) {
            self.push_ends(at, conn, Err(Error::new(ErrorKind::TimedOut, "no reply")), false);
        }
    }

    /// The outcome of a sending; a connection that is not `kept` is of no more use.
    fn push_ends(&mut self, at: usize, conn: u64, outcome: Result<Pushed>, kept: bool) {
        let sending = self.writers[at].calls.remove(&conn);
        if !kept {
            self.writers[at].idle.retain(|(_, idle)| *idle != conn);
            self.writers[at].replies.remove(&conn);
            if let Some(node) = self.net.get(conn).map(|conn| conn.node) {
                self.daemon_loses(node, conn);
            }
            self.net.close(conn);
        }
        let Some(Sending { frame, node, sent_ns, .. }) = sending else { return };
        if kept {
            self.writers[at].idle.push((node, conn));
        }
        if self.mutant == Some(Mutant::LoseOutcome) && frame.get() % 11 == 5 {
            return;
        }
        self.tell(|| format!("writer {at}: {frame} to node {node}, sent at {sent_ns}: {outcome:?}"));
        if outcome.is_ok()
            && let Some((id, version)) = self.writers[at].flights.get(&frame).copied()
            && self.backing.latest(id) == version
            && self.nodes[node].forgot_ns < sent_ns
            // That the frame is there already says nothing of its bytes, which a power failure may
            // have cost.
            && !(matches!(outcome, Ok(Pushed::AlreadyHere)) && self.nodes[node].has_lost_power)
        {
            self.checks.acknowledged(node, id, version);
        }
        let event = match outcome {
            Ok(pushed) => {
                let already = pushed == Pushed::AlreadyHere;
                zazen_push::Event::Acknowledged { frame, node, already }
            }
            // As `zazen-client` tells the machine of errors.
            Err(error) => match error.kind() {
                ErrorKind::NoSpace | ErrorKind::Busy => zazen_push::Event::Full { frame, node },
                ErrorKind::InvalidArgument
                | ErrorKind::NotFound
                | ErrorKind::PermissionDenied
                | ErrorKind::Conflict
                | ErrorKind::TooLarge
                | ErrorKind::Unsupported
                | ErrorKind::Stale
                | ErrorKind::Config => zazen_push::Event::Refused { frame, node },
                _ => zazen_push::Event::Failed { frame, node },
            },
        };
        self.writer_steps(at, event);
    }
}
