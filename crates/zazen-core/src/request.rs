//! A request for frames: begin, end and stride over frame numbers, `end` inclusive as in the paper
//! (§4).

use crate::error::{Error, ErrorKind, Result};
use crate::frame::FrameNo;

/// Frames `begin, begin + stride, … ≤ end`. The *index space* of a request is 0 ..
/// [`Request::count`]: index i stands for frame `begin + i·stride`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    begin: u64,
    end: u64,
    stride: u64,
}

impl Request {
    /// A request; fails with [`ErrorKind::InvalidArgument`] if `begin > end` or `stride` is 0 and
    /// with [`ErrorKind::TooLarge`] beyond the limit of frame numbers.
    pub fn new(begin: u64, end: u64, stride: u64) -> Result<Request> {
        FrameNo::new(end)?;
        if begin > end {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "request begins at frame {begin}, after its end {end}; \
                     give begin <= end (end is inclusive)"
                ),
            ));
        }
        if stride == 0 {
            return Err(Error::new(ErrorKind::InvalidArgument, "stride is 0; give 1 for every frame"));
        }
        Ok(Request { begin, end, stride })
    }

    /// The first frame number.
    pub fn begin(&self) -> u64 {
        self.begin
    }

    /// The bound, inclusive. It is requested itself only if its distance from `begin` is a multiple
    /// of the stride.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// The distance between requested frame numbers.
    pub fn stride(&self) -> u64 {
        self.stride
    }

    /// How many frames are requested; at least 1.
    pub fn count(&self) -> u64 {
        (self.end - self.begin) / self.stride + 1
    }

    /// The frame number at `index` of the index space. The caller guarantees `index < count()`.
    pub fn frame_at(&self, index: u64) -> u64 {
        self.begin + index * self.stride
    }

    /// The index of `frame`, or `None` if it is not requested.
    pub fn index_of(&self, frame: u64) -> Option<u64> {
        let offset = frame.checked_sub(self.begin)?;
        (frame <= self.end && offset % self.stride == 0).then_some(offset / self.stride)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_checked_and_indices_invert() {
        assert!(Request::new(5, 4, 1).is_err());
        assert!(Request::new(0, 4, 0).is_err());
        assert!(Request::new(0, (1 << 40) + 1, 1).is_err());
        let request = Request::new(10, 31, 7).unwrap();
        assert_eq!(request.count(), 4);
        for index in 0..4 {
            assert_eq!(request.index_of(request.frame_at(index)), Some(index));
        }
        assert_eq!(request.index_of(11), None);
        assert_eq!(request.index_of(9), None);
        assert_eq!(request.index_of(38), None);
    }
}
