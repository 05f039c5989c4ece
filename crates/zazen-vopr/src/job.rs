//! Jobs run: ranks that agree on who reads what, around the shipped [`Machine`], and read it.
//!
//! Ranks and collectives are MPI's: they do not fail. Daemons do; what they do not give is read
//! from the backing store.

use crate::calls;
use crate::collective::exchange;
use crate::content::{self, FrameId};
use crate::mutant::Mutant;
use crate::net::Caller;
use crate::rank::{Job, Stage};
use crate::world::{Event, MS, World};
use zazen_assign::{Answer, Input, Machine, Step};
use zazen_core::{Request, Result, RunSet};
use zazen_frames::messages::{
    BatchEntry, DatasetInfo, Holdings, OpenDataset, Query, ReportBad, ScanBatch, ScanNext, ScanOpen,
    ScanOpened, frames_fn,
};
use zazen_wire::checksum::frame_checksum;
use zazen_wire::{Message, service};

/// How long a rank waits for its daemon.
const TIMEOUT_NS: u64 = 10_000 * MS;

impl World {
    /// Jobs at random times, and one for each dataset after the faults have ended.
    pub(crate) fn plan_jobs(&mut self) {
        let profile = self.profile;
        for at in 0..profile.jobs + profile.datasets {
            let mut job = Job::new(profile.nodes, profile.datasets, &mut self.random);
            let mut begin_ns = profile.calm_ns / 5 + self.random.below(profile.calm_ns);
            if at >= profile.jobs {
                job.dataset = at - profile.jobs;
                // By then nobody holds a fault of before against a disk or a node.
                begin_ns = profile.calm_ns + 40_000 * MS;
            }
            self.jobs.push(job);
            self.schedule.at(begin_ns, Event::Begin { job: at });
        }
    }

    pub(crate) fn begin_job(&mut self, job: usize) {
        let dataset = self.jobs[job].dataset;
        self.jobs[job].begun = true;
        self.tell(|| format!("job {job}: begins to read dataset {dataset}"));
        self.jobs[job].target = self.backing.numbers(dataset).collect();
        if self.jobs[job].target.is_empty() {
            self.jobs[job].ranks.iter_mut().for_each(|rank| rank.stage = Stage::Done);
            return;
        }
        for rank in 0..self.jobs[job].ranks.len() {
            let node = self.jobs[job].ranks[rank].node;
            let conn = self.net.connect(Caller::Rank { job, rank }, node, node);
            self.jobs[job].ranks[rank].conn = conn;
            let ask = OpenDataset {
                path: content::spelled(dataset),
                want_extent: false,
                pattern: None,
                only_cached: false,
            };
            self.ask(job, rank, frames_fn::OPEN, ask.encode(), Stage::Opening);
        }
    }

    fn ask(&mut self, job: usize, at: usize, function: u16, payload: Vec<u8>, stage: Stage) {
        let asked_ns = self.now_ns();
        let rank = &mut self.jobs[job].ranks[at];
        rank.call += 1;
        (rank.stage, rank.asked_ns) = (stage, asked_ns);
        let (conn, call) = (rank.conn, rank.call);
        let bytes = calls::request(service::FRAMES, function, call, &payload, &[]);
        self.send(conn, true, bytes);
        self.schedule.after(TIMEOUT_NS, Event::Timeout { conn, call });
    }

    pub(crate) fn rank_receives(&mut self, job: usize, at: usize, conn: u64, bytes: Option<Vec<u8>>) {
        if self.jobs[job].ranks[at].conn != conn {
            return;
        }
        let Some(bytes) = bytes else { return self.daemon_is_gone(job, at) };
        let rank = &mut self.jobs[job].ranks[at];
        let Ok(parts) = rank.incoming.feed(&bytes) else { return self.daemon_is_gone(job, at) };
        let replies: Vec<_> = parts.into_iter().filter_map(|part| rank.reply.take(part)).collect();
        for (call, result) in replies {
            if self.jobs[job].ranks[at].call == call && self.rank_goes_on(job, at, result).is_err() {
                self.daemon_is_gone(job, at);
            }
        }
    }

    pub(crate) fn rank_waited(&mut self, job: usize, at: usize, conn: u64, call: u64) {
        let rank = &self.jobs[job].ranks[at];
        let waits = !matches!(rank.stage, Stage::Assigning | Stage::Direct | Stage::Done);
        if rank.conn == conn && rank.call == call && waits {
            self.daemon_is_gone(job, at);
        }
    }

    /// The rank goes on without its daemon.
    fn daemon_is_gone(&mut self, job: usize, at: usize) {
        let rank = &mut self.jobs[job].ranks[at];
        let conn = std::mem::take(&mut rank.conn);
        let (node, stage) = (rank.node, rank.stage);
        self.net.close(conn);
        self.daemon_loses(node, conn);
        match stage {
            Stage::Opening | Stage::Asking => self.ready_to_assign(job, at),
            Stage::Assigning => {}
            Stage::ScanOpening | Stage::Scanning | Stage::Reporting => self.read_the_rest(job, at),
            Stage::Direct | Stage::Done => {}
        }
    }

    fn rank_goes_on(&mut self, job: usize, at: usize, result: Result<(Vec<u8>, Vec<u8>)>) -> Result<()> {
        let (payload, bulk) = result?;
        match self.jobs[job].ranks[at].stage {
            Stage::Opening => {
                let info = DatasetInfo::decode(&payload)?;
                let target = &self.jobs[job].target;
                let (begin, end) = (target.first().unwrap_or(0), target.last().unwrap_or(0));
                self.jobs[job].ranks[at].handle = info.handle;
                let ask = Query { handle: info.handle, begin, end, stride: 1 };
                self.ask(job, at, frames_fn::QUERY, ask.encode(), Stage::Asking);
            }
            Stage::Asking => {
                let rank = &mut self.jobs[job].ranks[at];
                rank.holdings = Holdings::decode(&payload)?;
                rank.identity = rank.node as u128;
                self.ready_to_assign(job, at);
            }
            Stage::ScanOpening => {
                self.jobs[job].ranks[at].scan = ScanOpened::decode(&payload)?.scan;
                self.scan_on(job, at);
            }
            Stage::Scanning => {
                let batch = ScanBatch::decode(&payload)?;
                if batch.entries.is_empty() {
                    self.read_the_rest(job, at);
                    return Ok(());
                }
                let bad = batch.entries.iter().filter(|entry| !self.take(job, at, entry, &bulk)).count();
                let last_bad = batch.entries.last().filter(|_| bad == batch.entries.len());
                match last_bad.filter(|entry| entry.error.is_none()) {
                    Some(entry) => {
                        let handle = self.jobs[job].ranks[at].handle;
                        let ask = ReportBad { handle, number: entry.number };
                        self.ask(job, at, frames_fn::REPORT_BAD, ask.encode(), Stage::Reporting);
                    }
                    None => self.scan_on(job, at),
                }
            }
            Stage::Reporting => self.scan_on(job, at),
            Stage::Assigning | Stage::Direct | Stage::Done => {}
        }
        Ok(())
    }

    fn scan_on(&mut self, job: usize, at: usize) {
        let frames_max = 1 + self.random.below(8) as u16;
        let ask = ScanNext { scan: self.jobs[job].ranks[at].scan, frames_max, bytes_max: 1 << 20 };
        self.ask(job, at, frames_fn::SCAN_NEXT, ask.encode(), Stage::Scanning);
    }

    /// Takes a frame that the daemon hands out; false if it is of no use.
    fn take(&mut self, job: usize, at: usize, entry: &BatchEntry, bulk: &[u8]) -> bool {
        let now_ns = self.now_ns();
        let frame = FrameId { dataset: self.jobs[job].dataset, number: entry.number };
        let rank = &mut self.jobs[job].ranks[at];
        if !rank.todo.contains(frame.number) || rank.direct.contains(frame.number) {
            self.checks.fail(format!("handed out twice, or never asked for: {frame} to a rank of job {job}"));
            return false;
        }
        let end = entry.offset.saturating_add(entry.length);
        let bytes = bulk.get(entry.offset as usize..end as usize).filter(|_| entry.error.is_none());
        let is_right = |bytes: &&[u8]| {
            self.mutant == Some(Mutant::SkipFrameChecksum)
                || entry.checksum.is_none_or(|right| frame_checksum(bytes) == right)
        };
        let Some(bytes) = bytes.filter(is_right) else {
            rank.direct.insert(frame.number);
            return false;
        };
        let asked_ns = rank.asked_ns;
        self.checks.read(&self.backing, frame, bytes, (asked_ns, now_ns));
        self.is_read(job, at, frame.number);
        true
    }

    fn is_read(&mut self, job: usize, at: usize, number: u64) {
        self.jobs[job].ranks[at].todo.remove(number);
        if let Some(other) = self.jobs[job].read.insert(number, at) {
            self.checks.fail(format!("read twice: frame {number} by ranks {other} and {at} of job {job}"));
        }
    }

    fn ready_to_assign(&mut self, job: usize, at: usize) {
        self.jobs[job].ranks[at].stage = Stage::Assigning;
        if self.jobs[job].ranks.iter().all(|rank| rank.stage == Stage::Assigning) {
            let delay = MS / 20 + self.random.below(2 * MS);
            self.schedule.after(delay, Event::Collective { job });
        }
    }

    /// One collective of all ranks.
    pub(crate) fn collective(&mut self, job: usize) {
        match self.collective_step(job) {
            Ok(true) => {
                let delay = MS / 20 + self.random.below(2 * MS);
                self.schedule.after(delay, Event::Collective { job });
            }
            Ok(false) => {}
            Err(error) => self.checks.fail(format!("no assignment: job {job}: {error}")),
        }
    }

    /// Whether another one follows.
    fn collective_step(&mut self, at: usize) -> Result<bool> {
        let seed = self.random.next_u64();
        let job = &mut self.jobs[at];
        let (first, last) = (job.target.first().unwrap_or(0), job.target.last().unwrap_or(0));
        let size = job.ranks.len();
        let mut steps = Vec::new();
        for (number, rank) in job.ranks.iter_mut().enumerate() {
            if rank.machine.is_none() {
                let input = Input {
                    node: rank.identity,
                    native: rank.holdings.native.clone(),
                    alien: rank.holdings.alien.clone(),
                    request: Request::new(first, last, 1)?,
                    target: Some(job.target.clone()),
                    rules: job.rules,
                    protocol: job.protocol,
                    verify_exact: job.verify_exact,
                    seed: (u128::from(seed) << 64 | number as u128).to_le_bytes(),
                };
                rank.machine = Some(Machine::new(input, number, size)?);
            }
            if let Some(machine) = &mut rank.machine {
                steps.push(machine.step(std::mem::replace(&mut rank.answer, Answer::Start))?);
            }
        }
        if steps.iter().all(|step| matches!(step, Step::Done(_))) {
            let shares = steps.into_iter().map(|step| match step {
                Step::Done(assignment) => assignment.set,
                _ => RunSet::new(),
            });
            let shares: Vec<RunSet> = shares.collect();
            self.assigned(at, shares);
            return Ok(false);
        }
        for (rank, answer) in job.ranks.iter_mut().zip(exchange(steps, self.mutant)?) {
            rank.answer = answer;
        }
        Ok(true)
    }

    fn assigned(&mut self, job: usize, mut shares: Vec<RunSet>) {
        let from = shares.iter().position(|share| !share.is_empty());
        let size = shares.len();
        if let (Some(from), true) = (from, size > 1) {
            let number = shares[from].first().unwrap_or(0);
            match self.mutant {
                Some(Mutant::AssignTwice) => _ = shares[(from + 1) % size].insert(number),
                Some(Mutant::AssignNobody) => _ = shares[from].remove(number),
                _ => {}
            }
        }
        for (at, share) in shares.into_iter().enumerate() {
            let rank = &mut self.jobs[job].ranks[at];
            (rank.todo, rank.machine) = (share, None);
            if rank.todo.is_empty() {
                rank.stage = Stage::Done;
            } else if rank.conn == 0 {
                self.read_the_rest(job, at);
            } else {
                let ask = ScanOpen { handle: rank.handle, set: rank.todo.clone() };
                self.ask(job, at, frames_fn::SCAN_OPEN, ask.encode(), Stage::ScanOpening);
            }
        }
    }

    /// What the daemon did not give is read from the backing store.
    fn read_the_rest(&mut self, job: usize, at: usize) {
        let rank = &mut self.jobs[job].ranks[at];
        rank.stage = if rank.todo.is_empty() { Stage::Done } else { Stage::Direct };
        if rank.stage == Stage::Direct {
            let delay = MS + self.random.below(5 * MS);
            self.schedule.after(delay, Event::ReadSource { job, rank: at });
        }
    }

    pub(crate) fn read_source(&mut self, job: usize, at: usize) {
        let now_ns = self.now_ns();
        let rank = &self.jobs[job].ranks[at];
        let Some(number) = rank.todo.first() else { return };
        if self.backing.check(now_ns).is_err() {
            return self.schedule.after(200 * MS, Event::ReadSource { job, rank: at });
        }
        let frame = FrameId { dataset: self.jobs[job].dataset, number };
        let bytes = frame.bytes(self.backing.version(frame, now_ns));
        self.checks.read(&self.backing, frame, &bytes, (now_ns, now_ns));
        self.is_read(job, at, number);
        self.read_the_rest(job, at);
    }

    /// Datasets that are scanned on a node now.
    pub(crate) fn scanned_on(&self, node: usize) -> Vec<usize> {
        let scans = self.jobs.iter().flat_map(Job::scans);
        scans.filter(|(at, _)| *at == node).map(|(_, dataset)| dataset).collect()
    }

    pub(crate) fn judge_job(&mut self, at: usize) {
        let job = &self.jobs[at];
        let read: RunSet = job.read.keys().copied().collect();
        let missing = job.target.difference(&read);
        if !job.begun || job.ranks.iter().any(|rank| rank.stage != Stage::Done) {
            let stages: Vec<Stage> = job.ranks.iter().map(|rank| rank.stage).collect();
            self.checks.fail(format!("no progress: job {at} never ends, its ranks are {stages:?}"));
        } else if !missing.is_empty() {
            self.checks.fail(format!("read by nobody: {missing:?} of job {at}"));
        } else if !read.is_subset(&job.target) {
            self.checks.fail(format!("read without being asked for: {read:?} of job {at}"));
        }
    }
}
