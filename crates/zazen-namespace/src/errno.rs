//! What a refused operation answers: the kernel's own error numbers.

/// Declares the errors: name, Linux's number, meaning.
macro_rules! errnos {
    ($($name:ident = $number:literal, $about:literal;)+) => {
        /// Why an operation was refused. The numbers are Linux's, so that a mount gives them on.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u16)]
        #[allow(clippy::upper_case_acronyms)]
        pub enum Errno {
            $(#[doc = $about] $name = $number,)+
        }

        impl Errno {
            /// The error with Linux's `number`; [`Errno::EIO`] for a number that is not listed.
            pub fn of(number: u16) -> Errno {
                match number {
                    $($number => Errno::$name,)+
                    _ => Errno::EIO,
                }
            }

            /// What the error means, for people.
            pub fn meaning(self) -> &'static str {
                match self {
                    $(Errno::$name => $about,)+
                }
            }
        }
    };
}

errnos! {
    EPERM = 1, "The operation is not permitted.";
    ENOENT = 2, "There is no such file or directory.";
    EINTR = 4, "The call was interrupted.";
    EIO = 5, "Input or output failed.";
    ENXIO = 6, "There is no such device, address, or data at that offset.";
    EBADF = 9, "The file is not open, or not open this way.";
    EAGAIN = 11, "The lock is held by another; try again.";
    ENOMEM = 12, "There is not enough memory.";
    EACCES = 13, "Permission is denied.";
    EBUSY = 16, "The object is in use.";
    EEXIST = 17, "The file exists.";
    EXDEV = 18, "The two names are on different file systems.";
    ENOTDIR = 20, "This is not a directory.";
    EISDIR = 21, "This is a directory.";
    EINVAL = 22, "The argument is not valid.";
    EMFILE = 24, "Too many files are open.";
    ETXTBSY = 26, "The program is running.";
    EFBIG = 27, "The file is too large.";
    ENOSPC = 28, "No space is left.";
    EROFS = 30, "The file system is read-only.";
    EMLINK = 31, "The file has too many links.";
    ERANGE = 34, "The result does not fit.";
    EDEADLK = 35, "The lock would wait for itself.";
    ENAMETOOLONG = 36, "The name is too long.";
    ENOLCK = 37, "There are too many locks.";
    ENOSYS = 38, "The operation is not known.";
    ENOTEMPTY = 39, "The directory is not empty.";
    ELOOP = 40, "There are too many symbolic links.";
    ENODATA = 61, "There is no such attribute.";
    EOVERFLOW = 75, "The value is too large for its type.";
    EOPNOTSUPP = 95, "The operation is not supported here.";
    ETIMEDOUT = 110, "Nobody answered in time.";
    ESTALE = 116, "The inode is gone, or the grant ended.";
    EDQUOT = 122, "The quota is used up.";
}

impl Errno {
    /// Whether it says that nothing was done, and that the path may lead elsewhere by now. The
    /// kernel and the library look up the path again then, and ask once more.
    pub fn asks_for_another_look(self) -> bool {
        matches!(self, Errno::ENOENT | Errno::ESTALE | Errno::ENOTDIR | Errno::EACCES)
    }

    /// The error of a call that has changed something before it failed. Nobody may take it for one
    /// after which the change is to be asked for again.
    #[must_use]
    pub fn after_change(self) -> Errno {
        if self.asks_for_another_look() { Errno::EIO } else { self }
    }
}

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.meaning())
    }
}

impl zazen_wire::field::Field for Errno {
    type Value = Errno;
    const BYTES_MIN: usize = 2;
    fn write(value: &Errno, writer: &mut zazen_wire::codec::Writer) {
        writer.u16(*value as u16);
    }
    fn read(reader: &mut zazen_wire::codec::Reader<'_>) -> zazen_core::Result<Errno> {
        Ok(Errno::of(reader.u16()?))
    }
}
