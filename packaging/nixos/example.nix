# Part of a machine's configuration: a web server on ports that survive a restart of the gate.
{ lib, pkgs, ... }:

{
  imports = [ ./module.nix ];

  services.syngate = {
    enable = true;
    sockets.web = [ "80" ];
    settings.services.web = {
      listen = "fd:web";
      command = "${lib.getExe pkgs.python3} -m http.server --directory /srv/www --bind {addr} {port}";
    };
  };

  networking.firewall.allowedTCPPorts = [ 80 ];
}
