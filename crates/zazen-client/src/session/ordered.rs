//! Frames by number instead of in storage order.

use super::Dataset;
use crate::cluster::daemon_is_gone;
use crate::lost::warn_of_lost_daemon;
use crate::read::{Access, AnyReader, FrameReader, OrderedReader, Pool, ReadOptions, Recorder, Scan};
use std::sync::Arc;
use std::time::Instant;
use zazen_core::{Result, RunSet};

impl Dataset {
    /// Reads `set` by ascending number, in about `options.memory_max` bytes. This costs speed where
    /// numbers are not the storage order: each part of the numbers is a scan of its own, and a miss
    /// holds up the frames behind it.
    pub(crate) fn frames_ordered(&mut self, set: RunSet, options: &ReadOptions) -> Result<OrderedReader> {
        let began = Instant::now();
        let mut daemon = self.with_daemon(|local| {
            local.remote.ping()?;
            Ok(local.spec.clone())
        })?;
        if daemon.is_none() {
            self.direct()?;
        }
        let advised = self.advised();
        let agreed = self.agreed.take();
        let record = Recorder::begin(self.facts(agreed), began).map(Arc::new);
        let (direct_spec, direct, path) = (self.direct_spec.clone(), self.direct.clone(), self.path.clone());
        let options = ReadOptions { memory_max: (options.memory_max / 2).max(1), ..options.clone() };
        let kept = record.clone().map(|record| (record, daemon.as_ref().map(|spec| spec.target.clone())));
        let memory_max = options.memory_max * 2;
        let start = move |window: RunSet| {
            let begun = daemon.as_ref().map(|spec| (Scan::begin(spec, &window), spec));
            let scan = match begun {
                Some((Ok(scan), _)) => Some(scan),
                Some((Err(error), spec)) if daemon_is_gone(&error) => {
                    warn_of_lost_daemon(spec, &path, &error);
                    daemon = None;
                    None
                }
                Some((Err(error), _)) => return Err(error),
                None => None,
            };
            let pool = Pool::new(options.memory_max);
            let mut access =
                Access::new(pool, options.check, daemon.clone(), direct_spec.clone(), direct.clone());
            access.record = record.clone();
            FrameReader::start(access, scan, window, &options, advised).map(FrameReader::into_window)
        };
        OrderedReader::new(Box::new(start), set, memory_max, kept)
    }

    /// As [`Dataset::frames`], or by ascending number if `ordered`.
    pub fn frames_in(&mut self, set: RunSet, options: &ReadOptions, ordered: bool) -> Result<AnyReader> {
        match ordered {
            true => self.frames_ordered(set, options).map(|reader| AnyReader::Ordered(Box::new(reader))),
            false => self.frames(set, options).map(|reader| AnyReader::Storage(Box::new(reader))),
        }
    }
}
