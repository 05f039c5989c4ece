//! What the ranks of a job learn from rank 0 before they assign: which frames are meant.
//!
//! One broadcast. Where rank 0 fails, all ranks fail.

use zazen_assign::Collectives;
use zazen_core::{Error, ErrorKind, Result, RunSet};
use zazen_wire::codec::{Message, Reader, Writer};

/// What rank 0 can tell the others.
pub(crate) trait Word: Clone {
    /// Of the message, for errors.
    const NAME: &'static str;
    /// Appends it to a message.
    fn write(&self, writer: &mut Writer);
    /// Reads it back.
    fn read(reader: &mut Reader<'_>) -> Result<Self>;
}

/// The frames that exist.
impl Word for RunSet {
    const NAME: &'static str = "RootExtent";

    fn write(&self, writer: &mut Writer) {
        writer.runset(self);
    }

    fn read(reader: &mut Reader<'_>) -> Result<RunSet> {
        reader.runset()
    }
}

/// The first and the last frame that exist.
#[derive(Clone)]
pub(crate) struct Bounds(pub(crate) u64, pub(crate) u64);

impl Word for Bounds {
    const NAME: &'static str = "RootBounds";

    fn write(&self, writer: &mut Writer) {
        writer.u64(self.0);
        writer.u64(self.1);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Bounds> {
        Ok(Bounds(reader.u64()?, reader.u64()?))
    }
}

/// Which files there are, where they are numbered by their names: how many, and the checksum of
/// their paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Names {
    pub(crate) files: u64,
    pub(crate) sum: u64,
}

impl Word for Names {
    const NAME: &'static str = "RootNames";

    fn write(&self, writer: &mut Writer) {
        writer.u64(self.files);
        writer.u64(self.sum);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Names> {
        Ok(Names { files: reader.u64()?, sum: reader.u64()? })
    }
}

/// Rank 0's word, or why it has none, as (kind code, message).
struct Told<T>(std::result::Result<T, (u32, String)>);

impl<T: Word> Message for Told<T> {
    const NAME: &'static str = T::NAME;

    fn write(&self, writer: &mut Writer) {
        match &self.0 {
            Ok(word) => {
                writer.bool(true);
                word.write(writer);
            }
            Err((kind, message)) => {
                writer.bool(false);
                writer.u32(*kind);
                writer.clipped_text(message);
            }
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Told<T>> {
        Ok(Told(match reader.bool()? {
            true => Ok(T::read(reader)?),
            false => Err((reader.u32()?, reader.free_text()?)),
        }))
    }
}

/// What `know` gives on rank 0, on every rank; collective. `know` is called on rank 0 only.
pub(crate) fn told_by_rank_0<T: Word>(
    collectives: &dyn Collectives,
    know: impl FnOnce() -> Result<T>,
) -> Result<T> {
    if collectives.rank() == 0 {
        let known = know();
        let told = match &known {
            Ok(word) => Ok(word.clone()),
            Err(error) => Err((error.kind() as u32, error.to_string())),
        };
        collectives.broadcast(&Told(told).encode())?;
        return known;
    }
    match Told::<T>::decode(&collectives.broadcast(&[])?)?.0 {
        Ok(word) => Ok(word),
        Err((kind, message)) => {
            let kind = ErrorKind::from_code(kind).unwrap_or(ErrorKind::Unavailable);
            Err(Error::new(kind, format!("rank 0: {message}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zazen_assign::threads::run;

    fn check(know: fn() -> Result<Bounds>, expected: std::result::Result<(u64, u64), ErrorKind>) {
        for told in run(3, |rank| told_by_rank_0(rank, know)) {
            let told = told.map(|Bounds(first, last)| (first, last));
            assert_eq!(told.map_err(|error| error.kind()), expected);
        }
    }

    #[test]
    fn all_ranks_hear_the_same() {
        check(|| Ok(Bounds(3, 1 << 40)), Ok((3, 1 << 40)));
        check(|| Err(Error::new(ErrorKind::NotFound, "no frames")), Err(ErrorKind::NotFound));
    }

    #[test]
    fn what_rank_0_tells_survives_the_way() {
        let set = RunSet::range(3, 9).union(&RunSet::range(20, 20));
        let told = Told::decode(&Told(Ok(set.clone())).encode()).unwrap();
        assert_eq!(told.0, Ok(set));
        let told = Told::<RunSet>::decode(&Told::<RunSet>(Err((2, "no".into()))).encode()).unwrap();
        assert_eq!(told.0, Err((2, "no".into())));
        assert!(Told::<RunSet>::decode(&[]).is_err());
    }
}
