"""Hessians of linear recurrent layers."""
