//! Which cores the daemon uses, and how much of them while other programs want them, too.
//!
//! Set before the daemon has threads: threads and the processes of plug-ins inherit both.

use rustix::process::setpriority_process;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use zazen_core::{Error, ErrorKind, Result};

/// Weights of the nice values from 0 to 19 to the kernel's scheduler (`sched_prio_to_weight`): of
/// two threads that want one core, each gets time in proportion to its weight.
const WEIGHTS: [u32; 20] =
    [1024, 820, 655, 526, 423, 335, 272, 215, 172, 137, 110, 87, 70, 56, 45, 36, 29, 23, 18, 15];
/// The largest share: that of any other program.
const SHARE_MAX: u8 = 50;

/// The cores of a machine, by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpus(Vec<usize>);

/// Percent of a core that one thread of the daemon gets while another program wants all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuShare(u8);

fn refuse(what: String) -> Error {
    Error::new(ErrorKind::Config, what)
}

impl Cpus {
    /// Numbers and ranges, such as `0-3,8`.
    pub fn parse(text: &str) -> Result<Cpus> {
        let bad = || refuse(format!("cpus {text:?}: give numbers and ranges of cores, such as 0-3,8"));
        let mut cores = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| text.trim().parse::<usize>().map_err(|_| bad());
            let (first, last) = (number(first)?, number(last)?);
            if last >= CpuSet::MAX_CPU {
                return Err(refuse(format!("cpus {text:?}: {last} is beyond {}", CpuSet::MAX_CPU - 1)));
            }
            if first > last {
                return Err(bad());
            }
            cores.extend(first..=last);
        }
        cores.sort_unstable();
        cores.dedup();
        Ok(Cpus(cores))
    }

    /// Keeps this thread, and what it starts from now on, on these cores. An error if the process
    /// does not get all of them.
    pub fn keep_to(&self) -> Result<()> {
        let mut set = CpuSet::new();
        self.0.iter().for_each(|core| set.set(*core));
        let got = sched_setaffinity(None, &set).and_then(|()| sched_getaffinity(None));
        let missing: Vec<String> = match got {
            Ok(got) => self.0.iter().filter(|core| !got.is_set(**core)).map(usize::to_string).collect(),
            Err(rustix::io::Errno::INVAL) => self.0.iter().map(usize::to_string).collect(),
            Err(errno) => return Err(Error::io(format!("keep to cpus {self}"), errno.into())),
        };
        if missing.is_empty() {
            return Ok(());
        }
        Err(refuse(format!(
            "cpus {self}: this machine has no core {}, or the daemon may not use it; `nproc` and \
             /sys/devices/system/cpu/online say which there are",
            missing.join(", ")
        )))
    }
}

impl std::fmt::Display for Cpus {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut rest = &self.0[..];
        let mut comma = "";
        while let Some(first) = rest.first() {
            let count = rest.iter().enumerate().take_while(|(at, core)| **core == first + at).count();
            match count {
                1 => write!(out, "{comma}{first}")?,
                _ => write!(out, "{comma}{first}-{}", first + count - 1)?,
            }
            comma = ",";
            rest = &rest[count..];
        }
        Ok(())
    }
}

impl CpuShare {
    /// A whole number of percent, from 1 to 50.
    pub fn new(percent: i64) -> Result<CpuShare> {
        let share = u8::try_from(percent).ok().filter(|share| (1..=SHARE_MAX).contains(share));
        share.map(CpuShare).ok_or_else(|| {
            refuse(format!("cpu_share {percent}: give percent of a core, from 1 to {SHARE_MAX}"))
        })
    }

    /// The nice value that gives at most this share beside a thread of nice value 0, or the lowest
    /// share that there is.
    fn nice(self) -> u8 {
        let fits = |weight: &u32| weight * 100 <= u32::from(self.0) * (weight + WEIGHTS[0]);
        WEIGHTS.iter().position(fits).unwrap_or(WEIGHTS.len() - 1) as u8
    }

    /// Bounds this thread, and what it starts from now on.
    pub fn take(self) -> Result<()> {
        let nice = self.nice();
        // A daemon that was started with less keeps to that.
        let before = rustix::process::getpriority_process(None);
        let before = before.map_err(|errno| Error::io("the daemon's nice value", errno.into()))?;
        if before < nice.into() {
            let set = setpriority_process(None, nice.into());
            set.map_err(|errno| Error::io(format!("cpu_share: nice value {nice}"), errno.into()))?;
        }
        // Where the kernel groups programs by session, nice values count within a session. Other
        // sessions are not this daemon's to change.
        if leads_its_session() {
            match std::fs::write("/proc/self/autogroup", nice.to_string()) {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => tracing::warn!("cpu_share: the weight of this session stays: {error}"),
            }
        }
        Ok(())
    }
}

/// Whether this process began its session. `rustix::process::getsid` ends a process whose session
/// began outside of its PID namespace: the kernel names such a session 0.
fn leads_its_session() -> bool {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let mut fields = stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace()).into_iter().flatten();
    let pid = stat.split_whitespace().next();
    pid.is_some() && fields.nth(3) == pid
}

impl std::fmt::Display for CpuShare {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} %", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores_are_read_and_shown() {
        for (text, shown) in [("3", "3"), ("0-3,8", "0-3,8"), (" 2, 1 ,0", "0-2"), ("5,7,5-6", "5-7")] {
            assert_eq!(Cpus::parse(text).unwrap().to_string(), shown);
        }
        for bad in ["", "a", "3-1", "-1", "1-", "0,,1", "99999999999999999999"] {
            assert!(Cpus::parse(bad).unwrap_err().to_string().contains("such as 0-3,8"), "{bad:?}");
        }
        assert!(Cpus::parse("0-1024").unwrap_err().to_string().contains("1023"));
    }

    #[test]
    fn a_share_is_the_weight_beside_another_thread() {
        let nice = |percent| CpuShare::new(percent).unwrap().nice();
        assert_eq!([nice(50), nice(49), nice(20), nice(2), nice(1)], [0, 1, 7, 18, 19]);
        for percent in 2..=50 {
            let weight = f64::from(WEIGHTS[usize::from(nice(percent))]);
            assert!(weight / (weight + 1024.0) <= percent as f64 / 100.0, "{percent}");
        }
        for bad in [0, 51, -1, 1 << 40] {
            assert!(CpuShare::new(bad).unwrap_err().to_string().contains("from 1 to 50"));
        }
    }
}
