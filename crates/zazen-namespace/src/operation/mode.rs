//! How files are opened.

zazen_wire::messages! {
    /// How a file is opened.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Mode {
        /// For reading.
        read: bool,
        /// For writing.
        write: bool,
        /// Its bytes are dropped first. The asking node becomes the holder if no node has the file
        /// open.
        truncate: bool,
    }
}
