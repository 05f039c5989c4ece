! Random access from Fortran: prints what test_installation.py compares.
!
!   mpiexec -n 2 ./random_access DATASET

program random_access
  use, intrinsic :: iso_c_binding
  use mpi_f08
  use zazen
  implicit none
  type(zazen_dataset) :: dataset
  type(zazen_runset) :: all, native, alien
  type(zazen_frames) :: frames
  type(zazen_paths) :: paths
  type(zazen_frame) :: frame, some(4)
  type(zazen_read_stats) :: stats
  type(zazen_trajectory) :: trajectory
  integer(c_int64_t) :: numbers(4), few(3), number, offset, before
  integer(c_int32_t), allocatable :: owners(:)
  integer(c_int32_t) :: status, statuses(4)
  integer(c_int8_t), pointer :: bytes(:)
  integer :: rank, at, length
  logical :: more, ascends
  character(len=4096) :: path
  character(len=:), allocatable :: text

  call MPI_Init()
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call get_command_argument(1, path)
  call zazen_open(trim(path), dataset, status)
  call check("open")
  call zazen_extent(dataset, all, status)
  call check("extent")
  allocate(owners(zazen_runset_len(all)))
  call zazen_owners(dataset, owners, status, MPI_COMM_WORLD)
  call check("owners")
  if (rank == 0) then
    print '(a,a)', "version ", zazen_version()
    call zazen_layout(dataset, text, status)
    call check("layout")
    print '(a,a)', "layout ", text
    print '(a,l1)', "path ", zazen_path(dataset) == trim(path)
    print '(a,l1)', "warned ", zazen_next_warning() /= ""
    call zazen_query(dataset, 0_c_int64_t, 39_c_int64_t, 1_c_int64_t, native, alien, status)
    call check("query")
    print '(a,i0,a,i0)', "native ", zazen_runset_len(native), " alien ", zazen_runset_len(alien)
    print '(a,*(i0,1x))', "owners ", count(owners == 0), count(owners == 1), count(owners == -1)
    print '(a,i0,*(1x,i0))', "from the second ", zazen_runset_numbers(all, few, 2_c_int64_t), few
    print '(a,l1,l1)', "contains ", zazen_runset_contains(all, 7_c_int64_t), &
      zazen_runset_contains(all, 4000_c_int64_t)
    call zazen_number_of(dataset, "frame-0000012.bin", number, status)
    call check("number_of")
    print '(a,i0)', "number ", number
    call zazen_trajectory_of(dataset, trajectory, text, status)
    print '(a,l1)', "trajectory ", status == zazen_ok
    if (command_argument_count() == 2) call of_trajectory()
    numbers = [9, 3, 9, 0]
    call zazen_read_many(dataset, numbers, some, status)
    call check("read_many")
    do at = 1, 4
      bytes => zazen_frame_data(some(at))
      print '(a,i0,a,i0,a,l1)', "frame ", zazen_frame_number(some(at)), " bytes ", size(bytes), &
        " cached ", any(zazen_frame_source(some(at)) == [zazen_native, zazen_alien])
      call zazen_frame_container(some(at), text, offset)
      if (text == "") text = zazen_frame_path(some(at))
      if (text == "") print '(a)', "no path"
      call zazen_frame_free(some(at))
    end do
    numbers(2) = 4000
    call zazen_read_many(dataset, numbers, some, status, statuses)
    print '(a,i0,*(1x,l1))', "statuses ", status, statuses == zazen_ok
    do at = 1, 4
      if (statuses(at) == zazen_ok) call zazen_frame_free(some(at))
    end do
    call zazen_frames_open(dataset, all, frames, status, ordered=.true., readers=2_c_int64_t)
    call check("frames")
    print '(a,i0)', "remaining ", zazen_frames_remaining(frames)
    ascends = .true.
    before = -1
    do
      call zazen_next(frames, frame, more, status)
      call check("next")
      if (.not. more) exit
      number = zazen_frame_number(frame)
      ascends = ascends .and. number > before
      before = number
      call zazen_frame_free(frame)
    end do
    call zazen_frames_stats(frames, stats, status)
    call check("stats")
    print '(a,l1,a,i0)', "ascends ", ascends, " taken ", stats%native + stats%alien + stats%backing_reads
    call zazen_frames_close(frames)
    call zazen_paths_open(dataset, all, paths, status)
    call check("paths")
    print '(a,i0)', "paths ", zazen_paths_remaining(paths)
    at = 0
    do
      call zazen_paths_next(paths, number, text, frame, more, status)
      call check("path")
      if (.not. more) exit
      inquire(file=text, size=length)
      if (length == 5000) at = at + 1
      call zazen_frame_free(frame)
    end do
    call zazen_paths_close(paths)
    print '(a,i0)', "whole files ", at
    call zazen_runset_free(native)
    call zazen_runset_free(alien)
  end if
  call zazen_runset_free(all)
  call zazen_close(dataset)
  call MPI_Finalize()

contains

  !> What is known of the trajectory file that the second argument names.
  subroutine of_trajectory()
    type(zazen_dataset) :: file
    call get_command_argument(2, path)
    call zazen_open(trim(path), file, status)
    call check("open")
    call zazen_trajectory_of(file, trajectory, text, status)
    call check("trajectory")
    bytes => zazen_trajectory_header(trajectory)
    print '(3a,*(1x,i0))', "of ", text, " has", trajectory%atoms, trajectory%frames, trajectory%files, &
      trajectory%troubles, size(bytes), sum(int(bytes))
    print '(2a)', "lies ", zazen_trajectory_file(file, 0_c_int64_t)
    print '(2a)', "trouble ", zazen_trajectory_trouble(file, 0_c_int64_t)
    print '(a,l1)', "more ", zazen_trajectory_file(file, 1_c_int64_t) /= ""
    call zazen_close(file)
  end subroutine

  subroutine check(what)
    character(len=*), intent(in) :: what
    if (status == zazen_ok) return
    print '(3a)', what, ": ", zazen_message()
    call MPI_Abort(MPI_COMM_WORLD, 1)
  end subroutine
end program
