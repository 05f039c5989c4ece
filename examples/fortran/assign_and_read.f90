! Reads a dataset under MPI, each frame on exactly one rank, and prints how many frames and bytes
! there are, and a sum over all bytes.
!
!   mpif90 zazen.f90 assign_and_read.f90 LIBRARY -o assign_and_read
!   mpiexec -n 4 ./assign_and_read DATASET [FIRST LAST STRIDE]
!
! zazen.f90 is in the folder that zazen.get_include() names in Python; LIBRARY is what
! zazen.get_library() names.

program assign_and_read
  use, intrinsic :: iso_c_binding
  use mpi_f08
  use zazen
  implicit none
  type(zazen_dataset) :: dataset
  type(zazen_runset) :: mine
  type(zazen_frames) :: frames
  type(zazen_frame) :: frame
  type(zazen_assignment) :: found
  integer(c_int8_t), pointer :: bytes(:)
  integer(c_int64_t) :: range(3), totals(3), number, at
  integer(c_int32_t) :: status
  integer :: rank, argument
  logical :: more
  character(len=4096) :: path, text

  call MPI_Init()
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  if (command_argument_count() /= 1 .and. command_argument_count() /= 4) then
    if (rank == 0) print '(a)', "usage: assign_and_read DATASET [FIRST LAST STRIDE]"
    call MPI_Finalize()
    stop 2
  end if
  call get_command_argument(1, path)
  call zazen_open(trim(path), dataset, status)
  call check("open")
  if (command_argument_count() == 4) then
    do argument = 1, 3
      call get_command_argument(argument + 1, text)
      read (text, *) range(argument)
    end do
    call zazen_assign(dataset, mine, status, MPI_COMM_WORLD, range(1), range(2), range(3), found=found)
  else
    call zazen_assign(dataset, mine, status, MPI_COMM_WORLD, found=found)
  end if
  call check("assign")
  call zazen_frames_open(dataset, mine, frames, status)
  call check("frames")
  totals = 0
  do
    call zazen_next(frames, frame, more, status)
    call check("next")
    if (.not. more) exit
    number = zazen_frame_number(frame)
    bytes => zazen_frame_data(frame)
    totals(1) = totals(1) + 1
    totals(2) = totals(2) + size(bytes, kind=c_int64_t)
    do at = 1, size(bytes, kind=c_int64_t)
      totals(3) = totals(3) + iand(int(bytes(at), c_int64_t), 255_c_int64_t) * (number + 1)
    end do
    call zazen_frame_free(frame)
  end do
  call zazen_frames_close(frames)
  call zazen_runset_free(mine)
  call zazen_close(dataset)
  call MPI_Allreduce(MPI_IN_PLACE, totals, 3, MPI_INTEGER8, MPI_SUM, MPI_COMM_WORLD)
  if (rank == 0) then
    print '(a,i0,a,i0,a,i0,a,i0,a,i0)', "frames ", totals(1), " bytes ", totals(2), " sum ", totals(3), &
      " native ", found%total_native, " residue ", found%total_residue
  end if
  call MPI_Finalize()

contains

  subroutine check(what)
    character(len=*), intent(in) :: what
    if (status == zazen_ok) return
    print '(3a)', what, ": ", zazen_message()
    call MPI_Abort(MPI_COMM_WORLD, 1)
  end subroutine
end program
