//! IOR's command line as a program: what `ior -b 16m -t 4m -s 4 -w -r -C -F` would do.
//!
//! Each rank writes `-s` segments of a block of `-b` bytes in transfers of `-t`, and reads them
//! back. With `-C` it reads what the next node's ranks wrote. Bytes lie on the writer's own disk;
//! a shared file's metadata is on one node.

use crate::program::{At, MetaOp, MetadataNode, Op, Program};
use zazen_core::{Error, ErrorKind, Result, byte_size};

/// The most transfers of a rank.
const TRANSFERS_MAX: u64 = 100_000_000;

struct Flags {
    block: u64,
    transfer: u64,
    segments: u64,
    repetitions: u64,
    writes: bool,
    reads: bool,
    is_file_each: bool,
    is_reordered: bool,
    is_synced: bool,
    is_collective: bool,
}

fn refuse<T>(why: impl std::fmt::Display) -> Result<T> {
    Err(Error::new(ErrorKind::InvalidArgument, format!("ior: {why}")))
}

/// The program of IOR's options, such as `-b 16m -t 4m -w`. IOR's own defaults count where an
/// option is missing: blocks of 1 MiB, transfers of 256 KiB, writing and reading.
/// `InvalidArgument` names an option that IOR does not have, or that is not simulated.
pub fn program(options: &str) -> Result<Program> {
    let flags = parse(options)?;
    if flags.transfer == 0 || flags.block == 0 || !flags.block.is_multiple_of(flags.transfer) {
        let why =
            format!("the block (-b {}) is no multiple of the transfer (-t {})", flags.block, flags.transfer);
        return refuse(why);
    }
    let transfers = flags.block / flags.transfer;
    let Some(all) = transfers.checked_mul(flags.segments).filter(|all| (1..=TRANSFERS_MAX).contains(all))
    else {
        return refuse(format!("a rank must make between 1 and {TRANSFERS_MAX} transfers"));
    };
    if !(1..=1_000_000).contains(&flags.repetitions) {
        return refuse("-i must be between 1 and 1000000");
    }
    let place = if flags.is_file_each { MetadataNode::Hashed } else { MetadataNode::Directory { parts: 1 } };
    let moves = |program: Program, name: &str, op: Op| {
        program.repeat(all as u32, 1, |program| match flags.is_collective {
            true => program.then("barrier", Op::Barrier).then(name, op),
            false => program.then(name, op),
        })
    };
    let once = |mut program: Program| {
        if flags.writes {
            program = program.then("create", Op::Meta(MetaOp::Insert, place)).then("barrier", Op::Barrier);
            program = moves(program, "write", Op::Write(flags.transfer, At::Local));
            if flags.is_synced {
                program = program.then("sync", Op::Sync);
            }
            program = program.then("close", Op::Meta(MetaOp::Close, place)).then("barrier", Op::Barrier);
        }
        if flags.reads {
            let at = if flags.is_reordered { At::Next } else { At::Local };
            program = program.then("open", Op::Meta(MetaOp::Open, place)).then("barrier", Op::Barrier);
            program = moves(program, "read", Op::Read(flags.transfer, at));
            program = program.then("close", Op::Meta(MetaOp::Close, place)).then("barrier", Op::Barrier);
        }
        program
    };
    Ok(Program::new().repeat(flags.repetitions as u32, 0, once))
}

fn parse(options: &str) -> Result<Flags> {
    let mut flags = Flags {
        block: 1 << 20,
        transfer: 256 << 10,
        segments: 1,
        repetitions: 1,
        writes: false,
        reads: false,
        is_file_each: false,
        is_reordered: false,
        is_synced: false,
        is_collective: false,
    };
    let mut words = options.split_whitespace().peekable();
    if words.peek().is_some_and(|word| word.rsplit('/').next() == Some("ior")) {
        words.next();
    }
    while let Some(word) = words.next() {
        let mut value = || match words.next() {
            Some(value) => Ok(value),
            None => refuse(format!("{word} needs a value")),
        };
        // IOR's units are powers of 1024 in small letters.
        let bytes = |text: &str| byte_size::parse(text).or_else(|error| refuse(error.to_string()));
        let number =
            |text: &str| text.parse::<u64>().or_else(|_| refuse(format!("{word} {text:?} is no number")));
        match word {
            "-b" => flags.block = bytes(value()?)?,
            "-t" => flags.transfer = bytes(value()?)?,
            "-s" => flags.segments = number(value()?)?,
            "-i" => flags.repetitions = number(value()?)?,
            "-w" => flags.writes = true,
            "-r" => flags.reads = true,
            "-F" => flags.is_file_each = true,
            "-C" => flags.is_reordered = true,
            "-e" => flags.is_synced = true,
            "-c" => flags.is_collective = true,
            // What they set does not change what is simulated.
            "-k" | "-v" | "-vv" => {}
            "-a" | "-o" => {
                value()?;
            }
            "-N" => return refuse("-N: give --nodes and --ranks-per-node instead"),
            other => {
                let known = "-a -b -c -C -e -F -i -k -o -r -s -t -v -w";
                return refuse(format!("{other} is not simulated; these options are: {known}"));
            }
        }
    }
    if !flags.writes && !flags.reads {
        (flags.writes, flags.reads) = (true, true);
    }
    Ok(flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against what IOR's manual says of each option.
    #[test]
    fn options_become_steps() {
        let check = |options: &str, steps: u64, bytes: u64| {
            assert_eq!(program(options).unwrap().totals(), (steps, bytes), "{options}");
        };
        // 4 transfers of 256 KiB, written and read; create, close, open, close; four barriers.
        check("", 4 + 4 + 4 + 4, 2 << 20);
        check("-w", 4 + 2 + 2, 1 << 20);
        check("ior -a POSIX -b 16m -t 4m -s 4 -w -r -C -F -k", 2 * (16 + 4), 128 << 20);
        check("-b 16m -t 4m -w -c", 4 + 4 + 4, 16 << 20);
        check("-b 16m -t 4m -r -i 3", 3 * (4 + 4), 48 << 20);
        check("-w -e", 4 + 2 + 2 + 1, 1 << 20);
        let reordered = program("-r -C").unwrap();
        assert!(reordered.steps.iter().any(|step| matches!(step.op, Op::Read(_, At::Next))));
    }

    #[test]
    fn what_is_not_simulated_is_refused() {
        let check = |options: &str, expected: &str| {
            let message = program(options).unwrap_err().to_string();
            assert!(message.contains(expected), "{options}: {message}");
        };
        check("-z", "-z is not simulated");
        check("-b", "needs a value");
        check("-b 5m -t 2m", "no multiple");
        check("-s many", "no number");
        check("-s 0", "transfers");
        check("-N 4", "--nodes");
        check("-b 4x", "4x");
    }
}
