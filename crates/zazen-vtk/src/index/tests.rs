//! Index files as VTK and ParaView write them, and damaged ones.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn read(name: &str, files: &[(&str, &str)]) -> Result<Index> {
    let files: BTreeMap<&str, &str> = files.iter().copied().collect();
    read_index(name, &mut |path| match files.get(path) {
        Some(text) => Ok(text.as_bytes().to_vec()),
        None => Err(Error::new(ErrorKind::NotFound, "there is no such file")),
    })
}

fn one(index: &Index) -> (Vec<&str>, &Tree) {
    assert_eq!(index.steps.len(), 1);
    let step = &index.steps[0];
    (step.files.iter().map(String::as_str).collect(), &step.tree)
}

fn refuse(name: &str, files: &[(&str, &str)], words: &[&str]) {
    let error = read(name, files).unwrap_err().to_string();
    assert!(words.iter().all(|word| error.contains(word)), "{error}");
}

const VTM: &str = r#"<?xml version="1.0"?>
<VTKFile type="vtkMultiBlockDataSet" version="1.0" byte_order="LittleEndian"
         compressor="vtkZLibDataCompressor">
  <vtkMultiBlockDataSet>
    <DataSet index="0" name="west" file="ts_0/ts_0_0.vti"/>
    <Block index="2" name="east">
      <DataSet index="1" file="ts_0/ts_0_1.vti"/>
      <Piece index="2"><DataSet index="0" file="./ts_0/../ts_0/ts_0_2.vti"/></Piece>
    </Block>
    <DataSet index="3" name="hole"/>
  </vtkMultiBlockDataSet>
</VTKFile>"#;

fn file(at: usize) -> (Option<String>, Tree) {
    (None, Tree::File(at))
}

fn tree_of_vtm() -> Tree {
    let name = |name: &str| Some(name.to_owned());
    let east = Tree::Blocks(vec![(None, Tree::Empty), file(1), (None, Tree::Pieces(vec![file(2)]))]);
    Tree::Blocks(vec![
        (name("west"), Tree::File(0)),
        (None, Tree::Empty),
        (name("east"), east),
        (name("hole"), Tree::Empty),
    ])
}

#[test]
fn a_multiblock_is_a_tree() {
    let index = read("ts.vtm", &[("ts.vtm", VTM)]).unwrap();
    let (files, tree) = one(&index);
    assert_eq!(files, ["ts_0/ts_0_0.vti", "ts_0/ts_0_1.vti", "ts_0/ts_0_2.vti"]);
    assert_eq!(*tree, tree_of_vtm());
}

#[test]
fn a_series_lists_steps_by_time() {
    let series = r#"{"file-series-version": "1.0", "files": [
        {"name": "s/b.vtm", "time": 2.5}, {"name": "s/a.vtm", "time": 0.5},
        {"name": "s/gone.vtm", "time": 3}]}"#;
    let index =
        read("ts.vtm.series", &[("ts.vtm.series", series), ("s/a.vtm", VTM), ("s/b.vtm", VTM)]).unwrap();
    let times: Vec<f64> = index.steps.iter().map(|step| step.time).collect();
    assert_eq!(times, [0.5, 2.5, 3.0]);
    assert_eq!(index.steps[0].files[0], "s/ts_0/ts_0_0.vti");
    // A step whose own index is missing says so, and the others stand.
    let trouble = index.steps[2].trouble.as_ref().unwrap();
    assert!(trouble.contains("s/gone.vtm") && trouble.contains("no such file"), "{trouble}");
    let plain = r#"{"files": [{"name": "a.vtu", "time": 1}]}"#;
    let index = read("a.vtu.series", &[("a.vtu.series", plain)]).unwrap();
    assert_eq!(one(&index), (vec!["a.vtu"], &Tree::File(0)));
}

#[test]
fn collections_pieces_and_partitions() {
    let pvd = r#"<VTKFile type="Collection" version="0.1"><Collection>
        <DataSet timestep="1" group="" part="1" file="b.vtu"/><DataSet timestep="1" part="0" file="a.vtu"/>
        <DataSet timestep="0" part="0" file="s/p.pvtu"/></Collection></VTKFile>"#;
    let pvtu = r#"<VTKFile type="PUnstructuredGrid"><PUnstructuredGrid GhostLevel="0">
        <PPoints><PDataArray type="Float32" NumberOfComponents="3"/></PPoints>
        <Piece Source="p_0.vtu"/><Piece Source="p_1.vtu"/></PUnstructuredGrid></VTKFile>"#;
    let index = read("ts.pvd", &[("ts.pvd", pvd), ("s/p.pvtu", pvtu)]).unwrap();
    assert_eq!(index.steps[0].files, ["s/p_0.vtu", "s/p_1.vtu"]);
    assert_eq!(index.steps[0].tree, Tree::Pieces(vec![file(0), file(1)]));
    assert_eq!(index.steps[1].files, ["a.vtu", "b.vtu"]);
    let vtpd = r#"<VTKFile type="vtkPartitionedDataSet"><vtkPartitionedDataSet>
        <DataSet index="0" file="a.vti"/><DataSet index="1" file="b.vti"/>
        </vtkPartitionedDataSet></VTKFile>"#;
    let index = read("x.vtpd", &[("x.vtpd", vtpd)]).unwrap();
    assert_eq!(one(&index).1, &Tree::Pieces(vec![file(0), file(1)]));
    let vtpc = r#"<VTKFile type="vtkPartitionedDataSetCollection"><vtkPartitionedDataSetCollection>
        <Partitions index="0" name="left"><DataSet index="0" file="a.vti"/></Partitions>
        </vtkPartitionedDataSetCollection></VTKFile>"#;
    let index = read("x.vtpc", &[("x.vtpc", vtpc)]).unwrap();
    assert_eq!(one(&index).1, &Tree::Blocks(vec![(Some("left".into()), Tree::Pieces(vec![file(0)]))]));
    let table = "time,file\n0.5,a.vtu\n0.5,b.vtu\n1,c,d.vtu\n";
    let index = read("t.csv", &[("t.csv", table)]).unwrap();
    assert_eq!(index.files(), [vec!["a.vtu".to_owned(), "b.vtu".into()], vec!["c,d.vtu".into()]]);
    // Each step's parts are counted from 0: a block is the same one in all steps.
    let table = "time,file\n0,a.vtu\n1,c.vtu\n0,b.vtu\n1,d.vtu\n";
    let index = read("t.csv", &[("t.csv", table)]).unwrap();
    let blocks = |step: &Step| step.tree.blocks_of_files(2);
    assert_eq!(index.files()[1], ["c.vtu", "d.vtu"]);
    assert_eq!(index.steps.iter().map(blocks).collect::<Vec<_>>(), [["/part 0", "/part 1"]; 2]);
}

#[test]
fn pieces_that_share_cells_and_field_data_are_told() {
    let pvti = r#"<VTKFile type="PImageData"><PImageData WholeExtent="0 8 0 8 0 8" GhostLevel="1">
        <Piece Extent="0 5 0 8 0 8" Source="a.vti"/><Piece Extent="4 8 0 8 0 8" Source="b.vti"/>
        </PImageData></VTKFile>"#;
    let index = read("x.pvti", &[("x.pvti", pvti)]).unwrap();
    assert_eq!(index.steps[0].covered, BTreeMap::from([(1, vec![[0, 5, 0, 8, 0, 8]])]));
    // Which cells a piece shares is known by all extents, or by none.
    let first = "0 5 0 8 0 8";
    for (cut, shown) in [(first, "4"), (first, "0 5 0 8 0 x"), (" Extent=\"4 8 0 8 0 8\"", "")] {
        refuse("x.pvti", &[("x.pvti", &pvti.replace(cut, shown))], &["x.pvti", "line 2", "six numbers"]);
    }
    let field = r#"<FieldData><Array type="String" Name="title">65 0</Array></FieldData>"#;
    let vtm = VTM.replace("</VTKFile>", &format!("{field}</VTKFile>"));
    let series = r#"{"files": [{"name": "a.vtm", "time": 1}]}"#;
    for index in [
        read("a.vtm", &[("a.vtm", &vtm)]).unwrap(),
        read("a.vtm.series", &[("a.vtm.series", series), ("a.vtm", &vtm)]).unwrap(),
    ] {
        assert_eq!(one(&index).1, &tree_of_vtm());
        let told = index.steps[0].field_data.as_ref().unwrap();
        assert!(told.starts_with(r#"<VTKFile type="PolyData" version="1.0" byte_order="LittleEndian""#));
        assert!(told.contains(field) && roxmltree::Document::parse(told).is_ok(), "{told}");
    }
    assert_eq!(read("ts.vtm", &[("ts.vtm", VTM)]).unwrap().steps[0].field_data, None);
}

#[test]
fn a_damaged_index_names_the_place() {
    for cut in [1, 100, 300, VTM.len() - 5] {
        refuse("ts.vtm", &[("ts.vtm", &VTM[..cut])], &["ts.vtm", "no complete XML"]);
    }
    refuse("ts.vtm", &[], &["ts.vtm", "no such file"]);
    refuse("ts.vtm", &[("ts.vtm", "<a/>")], &["not VTKFile"]);
    refuse("ts.vtm", &[("ts.vtm", r#"<VTKFile type="Sphere"/>"#)], &["Sphere"]);
    let twice = r#"<VTKFile type="vtkMultiBlockDataSet"><DataSet index="0" file="a.vti"/>
        <DataSet index="0" file="b.vti"/></VTKFile>"#;
    refuse("ts.vtm", &[("ts.vtm", twice)], &["index 0"]);
    let huge =
        r#"<VTKFile type="vtkMultiBlockDataSet"><DataSet index="99999999999" file="a.vti"/></VTKFile>"#;
    refuse("ts.vtm", &[("ts.vtm", huge)], &["blocks and pieces"]);
    let itself = r#"<VTKFile type="vtkMultiBlockDataSet"><DataSet index="0" file="ts.vtm"/></VTKFile>"#;
    refuse("ts.vtm", &[("ts.vtm", itself)], &["deeper than"]);
    let strange = r#"<VTKFile type="vtkMultiBlockDataSet"><DataSet index="0" file="a.png"/></VTKFile>"#;
    refuse("ts.vtm", &[("ts.vtm", strange)], &["a.png is neither"]);
    let when = r#"<VTKFile type="Collection"><Collection>
        <DataSet timestep="soon" file="a.vtu"/></Collection></VTKFile>"#;
    refuse("t.pvd", &[("t.pvd", when)], &["t.pvd", "soon", "line 2"]);
    let mixed = r#"<VTKFile type="Collection"><Collection><DataSet timestep="1" file="a.vtu"/>
        <DataSet part="1" file="mesh.vtu"/></Collection></VTKFile>"#;
    refuse("t.pvd", &[("t.pvd", mixed)], &["line 2", "names no timestep"]);
    refuse("t.pvd", &[("t.pvd", r#"<VTKFile type="Collection"><Collection/></VTKFile>"#)], &["no time step"]);
    refuse("a.vtu.series", &[("a.vtu.series", "{\"files\": [{\"name\": \"a.vtu\"")], &["a.vtu.series"]);
    let same = r#"{"files": [{"name": "a.vtu", "time": 1}, {"name": "b.vtu", "time": 1}]}"#;
    refuse("a.vtu.series", &[("a.vtu.series", same)], &["the time 1"]);
    refuse("t.csv", &[("t.csv", "a,b\n")], &["time,file"]);
    refuse("t.csv", &[("t.csv", "time,file\nx,a.vtu\n")], &["line 2"]);
    refuse("t.png", &[], &["t.png is neither"]);
}

proptest! {
    /// Whatever the bytes are, there is an answer.
    #[test]
    fn no_bytes_stop_the_reader(
        cut in 0usize..VTM.len(),
        patch in "[<>/\"=a-z0-9 &;]{0,12}",
        at in 0usize..VTM.len()
    ) {
        let mut text = VTM.to_owned();
        text.insert_str(at, &patch);
        let cut = (0..=cut).rev().find(|cut| text.is_char_boundary(*cut)).unwrap();
        for text in [&text[..], &text[..cut], &text[cut..]] {
            for name in ["a.vtm", "a.pvd", "a.series", "a.csv", "a.pvtu"] {
                let _ = read(name, &[(name, text)]);
            }
        }
    }
}
