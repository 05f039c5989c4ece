-- A module file for Lmod. Put it at MODULEPATH/zazen/VERSION.lua, and set `root` to where Zazen is
-- installed: the prefix of a Python environment with the wheel, or /usr for the packages.
-- ZAZEN_MODULE_ROOT overrides it, for sites that generate module files.
local root = os.getenv("ZAZEN_MODULE_ROOT") or "/opt/zazen"

help([[
Zazen keeps scientific data on the disks of the nodes that compute on it.
zazen --help lists the commands; `man zazen` is the manual.
]])
whatis("Name: zazen")
whatis("Version: " .. myModuleVersion())
whatis("Category: data, input and output")
whatis("Description: scientific data on the disks of the nodes that compute on it")

-- One version at a time: programs and daemon must be of the same release.
conflict("zazen")

prepend_path("PATH", pathJoin(root, "bin"))
prepend_path("MANPATH", pathJoin(root, "share/man"))
prepend_path("XDG_DATA_DIRS", pathJoin(root, "share"))

-- ParaView loads the plug-in by itself, where the wheel is installed.
for minor = 11, 30 do
  local plugins = pathJoin(root, "lib/python3." .. minor, "site-packages/zazen/viz/paraview_plugins.xml")
  if isFile(plugins) then
    setenv("PV_PLUGIN_CONFIG_FILE", plugins)
  end
end

-- Sites with a list of nodes and a key for their users set these, too:
-- setenv("ZAZEN_NODES", "/etc/zazen/nodes.txt")
-- setenv("ZAZEN_KEY", "/etc/zazen/key")
