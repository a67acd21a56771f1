def ddp_hook(): pass
