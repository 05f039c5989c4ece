//! What a layout takes in memory, about.

use zazen_core::{Layout, Piece, RelPath};

/// What an allocation costs beside its bytes, and its least size.
const ALLOCATION_BYTES: usize = 32;

/// The memory of `layout`, about, in bytes. The tables of trajectories do not count: they are held
/// once for all, and bounded where they are held.
pub fn layout_bytes(layout: &Layout) -> usize {
    let path = |path: &RelPath| path.as_str().len() + ALLOCATION_BYTES;
    match layout {
        Layout::Pieces(pieces) => {
            pieces.iter().map(|piece| size_of::<Piece>() + path(&piece.path)).sum::<usize>()
        }
        Layout::List(files) => files.iter().map(|file| size_of::<RelPath>() + path(file)).sum(),
        Layout::Trajectory(trajectory) => {
            trajectory.files.iter().map(|file| size_of_val(file) + path(&file.path)).sum()
        }
        Layout::Files(_) | Layout::Blocks(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn long_lists_are_large() {
        let paths = |count: usize| vec![RelPath::new("a").unwrap(); count];
        assert!((5_000_000..10_000_000).contains(&layout_bytes(&Layout::List(Arc::new(paths(100_000))))));
        let piece =
            Piece { path: RelPath::default(), first: 0, count: 1, step: 1, offset: 0, frame_bytes: 1 };
        assert!((8_000_000..20_000_000).contains(&layout_bytes(&Layout::Pieces(vec![piece; 100_000]))));
        let template = zazen_core::NameTemplate::parse("f-{n}").unwrap();
        assert_eq!(layout_bytes(&Layout::Files(template)), 0);
    }
}
