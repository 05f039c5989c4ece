-- Slurm's job_submit/lua with Zazen's placement. It lies beside slurm.conf, and zazen_placement.lua
-- beside it. If you have a job_submit.lua, add the marked lines to yours.

local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./" -- zazen
local zazen = dofile(here .. "zazen_placement.lua") -- zazen
local warm = "/var/lib/zazen-slurm/warm" -- zazen: where zazen-slurm-features writes its table

function slurm_job_submit(job_desc, part_list, submit_uid)
	local wrong = zazen.place(slurm, job_desc, part_list, warm) -- zazen
	if wrong then -- zazen
		slurm.log_user("%s", wrong) -- zazen
		return slurm.ERROR -- zazen
	end -- zazen
	return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
	return slurm.SUCCESS
end

return slurm.SUCCESS
