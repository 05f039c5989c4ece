//! One error type for the whole product.
//!
//! The name of a kind says what its reader can do about it. There is no catch-all. Only
//! [`ERROR_TABLE`] maps a kind to the C status, the errno and the Python exception, so all front
//! ends agree.

use std::fmt;

/// The result of an operation that can fail for a reason outside Zazen.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, by remedy. Numeric values are wire and C ABI: never renumber, append only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum ErrorKind {
    /// The caller asked for something that cannot be: fix the call.
    InvalidArgument = 1,
    /// The named object does not exist.
    NotFound = 2,
    /// The caller may not do this with this object.
    PermissionDenied = 3,
    /// A different object already has this name or number.
    Conflict = 4,
    /// A disk, budget or quota is full.
    NoSpace = 5,
    /// A daemon, node or backing store does not answer: start it, or wait.
    Unavailable = 6,
    /// An answer did not come in time.
    TimedOut = 7,
    /// Stored bytes do not match their checksum, or a stored record is damaged.
    Corrupt = 8,
    /// A peer broke the protocol: a malformed, truncated or out-of-order message.
    Protocol = 9,
    /// The cluster key is missing or wrong.
    Authentication = 10,
    /// A size, count or number is beyond its limit.
    TooLarge = 11,
    /// The resource is in use, or the service is at its limit of callers: try again.
    Busy = 12,
    /// This build, file system or peer version cannot do it.
    Unsupported = 13,
    /// The source changed after the copy was made.
    Stale = 14,
    /// The daemon is draining and takes no new work.
    ShuttingDown = 15,
    /// The device or the kernel reported a failure.
    Io = 16,
    /// MPI is missing, or the communicator does not match the launcher.
    Mpi = 17,
    /// The configuration is wrong: fix the file or flag that the message names.
    Config = 18,
}

/// One row of the error table: (kind, name, errno, Python exception, Python builtin that it also
/// is).
pub type ErrorRow = (ErrorKind, &'static str, i32, &'static str, &'static str);

/// The error table. C status codes are the negated numeric values of the kinds.
pub const ERROR_TABLE: &[ErrorRow] = &[
    (ErrorKind::InvalidArgument, "invalid argument", 22, "InvalidArgumentError", "ValueError"),
    (ErrorKind::NotFound, "not found", 2, "NotFoundError", "FileNotFoundError"),
    (ErrorKind::PermissionDenied, "permission denied", 13, "PermissionDeniedError", "PermissionError"),
    (ErrorKind::Conflict, "conflict", 17, "ConflictError", "FileExistsError"),
    (ErrorKind::NoSpace, "no space", 28, "NoSpaceError", "OSError"),
    (ErrorKind::Unavailable, "unavailable", 111, "UnavailableError", "ConnectionError"),
    (ErrorKind::TimedOut, "timed out", 110, "TimedOutError", "TimeoutError"),
    (ErrorKind::Corrupt, "corrupt", 74, "CorruptError", "OSError"),
    (ErrorKind::Protocol, "protocol violation", 71, "ProtocolError", "OSError"),
    (ErrorKind::Authentication, "authentication failed", 129, "AuthenticationError", "PermissionError"),
    (ErrorKind::TooLarge, "too large", 27, "TooLargeError", "OverflowError"),
    (ErrorKind::Busy, "busy", 16, "BusyError", "BlockingIOError"),
    (ErrorKind::Unsupported, "unsupported", 95, "UnsupportedError", "NotImplementedError"),
    (ErrorKind::Stale, "stale", 116, "StaleError", "OSError"),
    (ErrorKind::ShuttingDown, "shutting down", 108, "ShuttingDownError", "ConnectionError"),
    (ErrorKind::Io, "input/output error", 5, "IoError", "OSError"),
    (ErrorKind::Mpi, "MPI", 134, "MpiError", "RuntimeError"),
    (ErrorKind::Config, "configuration", 22, "ConfigError", "ValueError"),
];

impl ErrorKind {
    /// The row of [`ERROR_TABLE`] for this kind.
    pub fn row(self) -> &'static ErrorRow {
        let found = ERROR_TABLE.iter().find(|row| row.0 == self);
        // Every variant has a row; the test `table_is_complete` checks this.
        found.unwrap_or(&ERROR_TABLE[0])
    }

    /// The kind with this numeric value, as it travels on the wire; `None` for an unknown one.
    pub fn from_code(code: u32) -> Option<ErrorKind> {
        ERROR_TABLE.iter().map(|row| row.0).find(|kind| *kind as u32 == code)
    }

    /// The nearest kind for an errno of the kernel.
    pub fn from_errno(errno: i32) -> ErrorKind {
        match errno {
            2 | 20 => ErrorKind::NotFound,
            1 | 13 | 30 => ErrorKind::PermissionDenied,
            17 => ErrorKind::Conflict,
            28 | 122 => ErrorKind::NoSpace,
            22 | 40 | 18 => ErrorKind::InvalidArgument,
            27 | 36 | 75 | 90 => ErrorKind::TooLarge,
            104 | 111 | 32 | 103 | 113 | 101 | 107 => ErrorKind::Unavailable,
            110 | 11 => ErrorKind::TimedOut,
            16 => ErrorKind::Busy,
            38 | 95 => ErrorKind::Unsupported,
            116 => ErrorKind::Stale,
            _ => ErrorKind::Io,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().1)
    }
}

/// An error: its kind, a message that names the object, the limit and the next step, and what
/// caused it.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    context: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error of `kind`; `context` names the object, the limit and the next step.
    pub fn new(kind: ErrorKind, context: impl Into<String>) -> Error {
        Error { kind, context: context.into(), source: None }
    }

    /// An [`std::io::Error`] met while doing `context`; the kind follows the errno.
    pub fn io(context: impl Into<String>, source: std::io::Error) -> Error {
        use std::io::ErrorKind as Io;
        let kind = match (source.raw_os_error(), source.kind()) {
            (Some(errno), _) => ErrorKind::from_errno(errno),
            (None, Io::TimedOut | Io::WouldBlock) => ErrorKind::TimedOut,
            (None, Io::NotFound) => ErrorKind::NotFound,
            (None, Io::PermissionDenied) => ErrorKind::PermissionDenied,
            (None, Io::UnexpectedEof | Io::ConnectionReset | Io::ConnectionAborted | Io::BrokenPipe) => {
                ErrorKind::Unavailable
            }
            (None, Io::StorageFull) => ErrorKind::NoSpace,
            (None, Io::InvalidData) => ErrorKind::Corrupt,
            // An empty path, or one with a NUL: the library refuses it before the kernel sees it.
            (None, Io::InvalidInput) => ErrorKind::InvalidArgument,
            (None, _) => ErrorKind::Io,
        };
        Error { kind, context: context.into(), source: Some(Box::new(source)) }
    }

    /// The same error with `outer` before its message.
    pub fn within(mut self, outer: impl fmt::Display) -> Error {
        self.context = format!("{outer}: {}", self.context);
        self
    }

    /// The error with another error as its cause.
    pub fn caused_by(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Error {
        self.source = Some(Box::new(source));
        self
    }

    /// The kind, for callers that branch.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The message without its causes.
    pub fn context(&self) -> &str {
        &self.context
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.context)?;
        if let Some(source) = &self.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source.as_ref() as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_complete_and_codes_round_trip() {
        for (at, row) in ERROR_TABLE.iter().enumerate() {
            assert_eq!(row.0 as usize, at + 1, "{:?} is out of order", row.0);
            assert_eq!(ErrorKind::from_code(row.0 as u32), Some(row.0));
            assert_eq!(row.0.row().1, row.1);
        }
        assert_eq!(ErrorKind::from_code(0), None);
        assert_eq!(ErrorKind::from_code(ERROR_TABLE.len() as u32 + 1), None);
    }

    #[test]
    fn message_names_context_and_cause() {
        let cause = std::io::Error::from_raw_os_error(28);
        let error = Error::io("write frame 7 of sim1", cause).within("push");
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert!(error.to_string().starts_with("push: write frame 7 of sim1: "), "{error}");
        let refused = std::path::absolute("").unwrap_err();
        assert_eq!(Error::io("a path", refused).kind(), ErrorKind::InvalidArgument);
    }
}
